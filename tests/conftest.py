"""The long tests are left out unless they are asked for: by LLMD_SOAK=1, or by pytest's `-m`."""

import gc

import pytest
from hypothesis import settings

from tests.soak import SOAK

# An example may take longer on a busy machine. A run tries the same examples as the one before, so
# that it fails by what has changed; the long runs draw new ones.
settings.register_profile("llmd", deadline=None, derandomize=not SOAK)
settings.load_profile("llmd")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked as `soak`."""
    if SOAK or config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


def pytest_collection_finish() -> None:
    """Spare garbage collections all that was imported: a tenth of the time of many tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have the interpreter end as it would: libraries complain of what it leaves behind."""
    gc.unfreeze()

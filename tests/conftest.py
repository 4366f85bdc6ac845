"""The long tests are left out unless they are asked for: by LLMD_SOAK=1, or by pytest's `-m`."""

import pytest
from hypothesis import settings

from tests.soak import SOAK

settings.register_profile("llmd", deadline=None)  # an example may take longer on a busy machine
settings.load_profile("llmd")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked as `soak`."""
    if SOAK or config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]

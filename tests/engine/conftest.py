"""Who forks quick workers, once for all tests that have some."""

from collections.abc import Iterator

import pytest

from daemon.config.paths import default_cache
from daemon.engine.process import keep_compiled
from tests.nursery.home import nursery

# As workers do. numba's own choice would not see a change in a file that kernels import from.
keep_compiled(default_cache())


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of real workers that start at once."""
    with nursery(tmp_path_factory.mktemp("nursery"), "tests.nursery.engine") as env:
        yield env

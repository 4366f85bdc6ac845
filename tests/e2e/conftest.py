"""Workers of this suite are forks of one process: they compute as ever, but start at once."""

from collections.abc import Iterator

import pytest

from tests.e2e import live
from tests.nursery.home import nursery


@pytest.fixture(scope="session", autouse=True)
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with nursery(tmp_path_factory.mktemp("nursery"), "tests.nursery.engine") as env:
        live.quick.update(env)
        yield
        live.quick.clear()


@pytest.fixture(scope="session")
def embedded(_quick: None) -> Iterator[live.LiveDaemon]:
    """A daemon with default settings and the embedded model, for tests that leave it as it was."""
    with live.LiveDaemon() as daemon:
        yield daemon

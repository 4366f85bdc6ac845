"""Who forks quick workers, once for all tests that have some."""

from collections.abc import Iterator

import pytest

from tests.nursery.home import nursery


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of real workers that start at once."""
    with nursery(tmp_path_factory.mktemp("nursery"), "tests.nursery.engine") as env:
        yield env

"""The process that forks quick workers, shared by all tests."""

from collections.abc import Iterator

import pytest

from tests.nursery.home import nursery


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of linked toys that start at once; to import torch takes the nursery
    seconds.
    """
    with nursery(tmp_path_factory.mktemp("nursery"), "tests.chaos.struck") as env:
        yield env

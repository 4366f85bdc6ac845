"""Who forks quick workers, once for all tests that have some."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.nursery import nursery


@pytest.fixture(scope="session")
def nursery_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of the nursery; to import torch takes it seconds."""
    with nursery(tmp_path_factory.mktemp("nursery")) as path:
        yield path

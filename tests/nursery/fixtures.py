"""Fixtures of suites whose workers and programs start at once; a suite's conftest imports them."""

import sys
from collections.abc import Iterator

import pytest

from tests.nursery.home import nursery, python


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of real workers that start at once."""
    with nursery(tmp_path_factory.mktemp("nursery"), "tests.nursery.engine") as env:
        yield env


@pytest.fixture
def quick_python(
    quick: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs that this process starts are forks of the one that has imported all."""
    program = python(tmp_path_factory.mktemp("python"), quick)
    monkeypatch.setattr(sys, "executable", str(program))

"""The place of each test's control socket; the tests' own colours."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "llmd.sock"


@pytest.fixture(autouse=True)
def _in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the person who runs the tests prefers."""
    monkeypatch.delenv("NO_COLOR", raising=False)

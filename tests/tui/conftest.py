"""The place of each test's control socket; the tests' own colours; when Textual's pilot goes on."""

from pathlib import Path

import pytest
from textual import app, pilot

from tests.tui.driving import settle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "llmd.sock"


@pytest.fixture(autouse=True)
def _in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the person who runs the tests prefers."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(autouse=True)
def _waits_for_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual would sleep until the process has used little time, as one does that gets no core."""
    for module in (app, pilot):
        monkeypatch.setattr(module, "wait_for_idle", settle)

"""Default places follow systemd first, the user's own folders next."""

from pathlib import Path

import pytest

from daemon.config import paths

VARIABLES = (
    "RUNTIME_DIRECTORY",
    "XDG_RUNTIME_DIR",
    "CACHE_DIRECTORY",
    "XDG_CACHE_HOME",
    "STATE_DIRECTORY",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/anna")


def test_a_user_without_a_session() -> None:
    assert paths.default_socket().name == "llmd.sock"
    assert paths.default_socket().parent.parent == Path("/tmp")
    assert paths.default_cache() == Path("/home/anna/.cache/llmd")
    assert paths.default_journal() == Path("/home/anna/.cache/llmd/journal")


def test_systemd_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert paths.default_socket() == Path("/run/user/1000/llmd.sock")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/llmd:/run/other")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/llmd")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/llmd")
    assert paths.default_socket() == Path("/run/llmd/llmd.sock")
    assert paths.default_cache() == Path("/var/cache/llmd")
    assert paths.default_journal() == Path("/var/lib/llmd/journal")


def test_each_model_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/home/anna/.cache/llmd/predict")
    assert paths.default_predictions("SmolLM2-1.7B") == folder / "SmolLM2-1.7B.lengths"
    assert paths.default_predictions("../a b/c").parent == folder
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/llmd")
    assert paths.default_predictions("x") == Path("/var/lib/llmd/predict/x.lengths")

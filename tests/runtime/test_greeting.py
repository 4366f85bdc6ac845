"""What a daemon says once it serves: lines to copy."""

import sys
from pathlib import Path

import pytest

from daemon.protocol.worker import Ready
from daemon.runtime import greeting
from daemon.runtime.greeting import DEFAULT_URL, how_to_talk, what_serves


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell that finds `llmd`."""
    program = tmp_path / "llmd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


@pytest.mark.parametrize(
    ("url", "command", "page"),
    [
        (DEFAULT_URL, "llmd chat", "http://127.0.0.1:8000/"),
        (
            "http://127.0.0.1:9000",
            "llmd chat --url http://127.0.0.1:9000",
            "http://127.0.0.1:9000/",
        ),
        ("http://0.0.0.0:8000", "llmd chat", "http://127.0.0.1:8000/"),
        ("http://[::]:9", "llmd chat --url 'http://[::1]:9'", "http://[::1]:9/"),
        (
            "http://192.0.2.1:80",
            "llmd chat --url http://192.0.2.1:80",
            "http://192.0.2.1:80/",
        ),
    ],
)
def test_lines_end_in_what_is_copied(url: str, command: str, page: str) -> None:
    terminal, browser, viewer = how_to_talk(url, True)
    assert terminal.endswith(f": {command}")
    assert browser.endswith(f": {page}")
    assert viewer.endswith(": llmd-top")
    assert how_to_talk(url, False) == [terminal, viewer]
    assert how_to_talk(url, False, "/run/a b")[1].endswith(": llmd-top --socket '/run/a b'")


def test_what_an_instance_has_room_for_is_told_in_words() -> None:
    ready = Ready(num_blocks=8301, block_bytes=737_280, weight_bytes=96_576_768, step_s=1)
    room = {"num_tokens": 16 * ready.num_blocks, "max_len": 8192, "max_running": 256}
    said = (
        "is ready: conversations of up to 8,192 tokens, and up to 256 answers at once; "
        "together they have room for 132,816 tokens (5.7 GiB, beside 92 MiB of weights)"
    )
    assert what_serves("cpu", ready, **room) == f"cpu {said}"
    assert what_serves("cpu", ready, **room, num_ranks=2) == f"cpu, of 2 ranks, {said}"


def test_a_program_that_no_shell_finds_is_named_by_its_path(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/llmd", "serve"])
    assert how_to_talk(DEFAULT_URL, False)[0].endswith(": llmd chat")
    installed.unlink()
    assert how_to_talk(DEFAULT_URL, False)[0].endswith(": .venv/bin/llmd chat")
    monkeypatch.setattr(sys, "argv", ["daemon/cli/main.py", "serve"])
    assert how_to_talk(DEFAULT_URL, False)[0].endswith(f": {greeting.PROGRAM} chat")

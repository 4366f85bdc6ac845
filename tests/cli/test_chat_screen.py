"""Thoughts on the chat's screen: dim on a terminal, nowhere else, and apart from the answer."""

import io

import pytest

from daemon.chat.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_thoughts_are_dim_and_apart_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), Terminal()
    screen = Screen(out, err)
    screen.think("so \x1b[31mred")
    screen.think("?")
    screen.answer("No.")
    assert err.getvalue() == "\x1b[2mso [31mred\x1b[0m\x1b[2m?\x1b[0m\n\n"
    assert out.getvalue() == "No."


def test_a_pipe_gets_the_answer_alone() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.think("so")
    screen.answer("No.")
    assert (out.getvalue(), err.getvalue()) == ("No.", "")

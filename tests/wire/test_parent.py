"""A process that forks itself away: where that fails, nothing else does."""

import os
import socket

import pytest

from daemon.engine.worker.main import _forked
from daemon.wire.parent import fork_away


def refused() -> int:
    raise BlockingIOError("no more processes")


def test_a_worker_that_cannot_be_forked_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", refused)
    assert not _forked(-1)


def test_a_fork_that_fails_exits_and_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second fork fails in the process between: it must not run on as a second worker."""
    ours, theirs = socket.socketpair()
    first, forks = os.fork, list[int]()

    def once() -> int:
        forks.append(1)
        return first() if len(forks) == 1 else refused()

    monkeypatch.setattr(os, "fork", once)
    with ours, theirs:
        assert not fork_away(theirs.fileno())
        assert len(forks) == 1, "here one, and another in the process that is gone"

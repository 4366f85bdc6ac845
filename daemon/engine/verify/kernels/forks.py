"""Forks that try families: one that dies, or is late twice, costs its family; another goes on."""

import os
import time
import traceback
from collections.abc import Callable, Iterator
from signal import SIGINT, SIGKILL, SIGTERM

import msgspec

from daemon.engine.verify.kernels.lines import LineReader, write
from daemon.engine.verify.kernels.messages import Late, Message, Request, Tried, Trying, Untried
from daemon.wire.parent import die_with_parent

OPEN_S = 120.0
"""Time for a fork to open its device, and to begin the next family."""
_ENDING_S = 10.0
"""Time to wait for a fork that hung up or was killed: a device may keep it."""
_LOOK_S = 0.01
_FROM_OUTSIDE = (-SIGKILL, -SIGTERM, -SIGINT)

Try = Callable[[Request, Callable[[Message], None]], None]
Tell = Callable[[Message], None]


def try_in_forks(request: Request, work: Try, tell: Tell) -> None:
    """Try each family that is asked for; `tell` gets every beginning and end, in order.

    Call it in a process that has imported all that is needed, has no other thread, and has not
    opened the device: a fork of any other cannot use it. A family that is late is tried twice: one
    that hangs does so again, one whose kernels took long to compile finds them compiled.
    """
    waiting, by_torch = list(request.families), set(request.by_torch)
    late: set[str] = set()
    while waiting:
        rest = msgspec.structs.replace(
            request, families=tuple(waiting), by_torch=tuple(sorted(by_torch))
        )
        fork = _Fork(rest, work, frozenset(late))
        before = len(waiting), len(late)
        for message in fork.messages():
            tell(message)
            if isinstance(message, Tried):
                waiting.remove(message.family)
                if message.fault:
                    by_torch.add(message.family)
            elif isinstance(message, Late):
                late.add(message.family)
        if (len(waiting), len(late)) == before:
            return  # it could not open the device, and has said so


class _Fork:
    """One process, which is dead or given up when its messages have ended."""

    def __init__(self, request: Request, work: Try, late: frozenset[str]) -> None:
        self._deadlines_s = request.deadlines_s
        self._late = late  # families that were it before
        self._reading, writing = os.pipe()
        self._lines = LineReader(self._reading)
        self._pid = os.fork()
        if not self._pid:
            _be(request, work, writing)
        os.close(writing)

    def messages(self) -> Iterator[Message]:
        """Its messages, and last the fate of the family that ended it, if any did."""
        tried, limit_s, said = "", OPEN_S, False
        while (message := self._lines.next(limit_s)) is not None:
            tried, limit_s, said = "", OPEN_S, True
            if isinstance(message, Trying):
                tried = message.family
                limit_s = self._deadlines_s[tried]
            yield message
        os.close(self._reading)
        late = not self._lines.hung_up
        status = self._end(late)
        why = (
            f"it was not done within {limit_s:g} s" if late else f"its process {_in_words(status)}"
        )
        if tried and late and tried not in self._late:
            yield Late(tried)
        elif tried:
            # Killed from outside: by the kernel for want of memory, or by a user.
            yield Tried(tried, why, passing=not late and status in _FROM_OUTSIDE)
        elif not said:
            yield Untried(f"the device cannot be opened: {why}")

    def _end(self, by_force: bool) -> int | None:
        """End it; its exit status, negative for a signal. None: it does not end."""
        if by_force:
            os.kill(self._pid, SIGKILL)
        deadline_s = time.monotonic() + _ENDING_S
        while time.monotonic() < deadline_s:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(_LOOK_S)
        os.kill(self._pid, SIGKILL)  # and goes on without it
        return None


def _in_words(status: int | None) -> str:
    if status is None:
        return "does not end"
    return f"died of signal {-status}" if status < 0 else f"ended with status {status}"


def _be(request: Request, work: Try, fd: int) -> None:
    """Run the fork, which never returns from here."""
    status = 1
    try:
        die_with_parent()
        work(request, lambda message: write(fd, message))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork goes no further up than here
        traceback.print_exc()
    finally:
        # A device that faulted may keep an orderly exit waiting.
        os._exit(status)

"""A process that answers each question in a fork of its own, which may be killed or die.

Questions come from clients: answering one may take for ever, all memory, or the process. A fork
has what the process has loaded, and takes nothing with it when it ends.

A frame in: a number (8 bytes) and a question. A frame out: its number, an `Outcome` (1 byte), the
answer. The first frame out says why there is nothing to ask for here (empty: it is ready).
"""

import contextlib
import gc
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from daemon.wire.blocking import BlockingChannel
from daemon.wire.parent import die_with_parent

HEAD = struct.Struct("<QB")
NUMBER = struct.Struct("<Q")
NICENESS = 5
"""On a machine that is busy a question of 3 ms takes four times as long: nobody feels that yet."""
LOOK_S = 0.01
"""So often a fork's use is looked at."""
_READ_BYTES = 1 << 20
_HIGHEST_FD = 1 << 16
_WHOLE = b"."
"""Stands behind an answer: what does not end so was cut short."""


class Outcome(IntEnum):
    """What became of a question."""

    ANSWERED = 0
    LATE = 1
    DIED = 2
    TOO_LONG = 3  # its answer


class Limits(NamedTuple):
    """What one question may use.

    Time that a fork waits for a processor does not count: a machine that is busy is no fault of
    the question's.
    """

    cpu_s: float
    waiting_s: float  # altogether, without doing anything
    memory_bytes: int  # of address space, beyond what the process has
    answer_bytes: int
    cpu_s_per_byte: float = 0.0  # of the question

    def cpu_of(self, question: bytes) -> float:
        """Seconds of a processor for a question."""
        return self.cpu_s + self.cpu_s_per_byte * len(question)


Answer = Callable[[bytes], bytes]


def be_modest() -> None:
    """Take the processor's time that others leave, and write no core files.

    A session of its own is a scheduling group of its own where the kernel groups by sessions, and
    niceness then counts within the group alone: so the group is made as nice.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Forks:
    """The questions that are being answered."""

    def __init__(self, answer: Answer, limits: Limits) -> None:
        """`answer` is called in forks alone; what it raises counts as its fork's death."""
        self._answer = answer
        self._limits = limits
        self._running: dict[int, _Fork] = {}  # by the pipe that the answer comes from

    def serve(self, channel: BlockingChannel) -> None:
        """Answer until the channel's end."""
        gc.freeze()  # else the first collection of each fork would copy all that is loaded
        channel.send(b"")
        while True:
            timeout_s = LOOK_S if self._running else None
            ready, _, _ = select.select([channel.fileno(), *self._running], [], [], timeout_s)
            if channel.fileno() in ready and not self._take(channel):
                return
            for number, outcome, answer in self._ended(ready):
                channel.send(HEAD.pack(number, outcome) + answer)

    def _take(self, channel: BlockingChannel) -> bool:
        """Begin what is asked; False at the channel's end."""
        while channel.wait(0.0):
            frame = channel.receive()
            if frame is None:
                return False
            (number,) = NUMBER.unpack_from(frame)
            self._begin(number, frame[NUMBER.size :])
        return True

    def ask(self, question: bytes) -> tuple[Outcome, bytes]:
        """Answer one question here and now, before there is a channel."""
        self._begin(0, question)
        while True:
            ready, _, _ = select.select(list(self._running), [], [], LOOK_S)
            for _number, outcome, answer in self._ended(ready):
                return outcome, answer

    def _begin(self, number: int, question: bytes) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._live(question, theirs)  # does not return
        os.close(theirs)
        os.set_blocking(ours, False)
        fork = _Fork(number, pid, ours, self._limits.cpu_of(question), self._limits)
        self._running[ours] = fork

    def _live(self, question: bytes, pipe: int) -> None:
        """The fork's whole life."""
        try:
            die_with_parent()
            os.closerange(3, pipe)  # the channel above all: its end is this process's parent's
            os.closerange(pipe + 1, _HIGHEST_FD)
            _limit_memory(self._limits.memory_bytes)
            view = memoryview(self._answer(question) + _WHOLE)
            while view:
                view = view[os.write(pipe, view) :]
        finally:
            os._exit(0)

    def _ended(self, ready: list[int]) -> list[tuple[int, Outcome, bytes]]:
        ended = []
        for pipe, fork in list(self._running.items()):
            outcome = fork.read() if pipe in ready else fork.look()
            if outcome is not None:
                del self._running[pipe]
                fork.end()
                answer = fork.answer if outcome == Outcome.ANSWERED else b""
                ended.append((fork.number, outcome, answer))
        return ended


class _Fork:
    """One question's process, as its parent sees it."""

    def __init__(self, number: int, pid: int, pipe: int, cpu_s: float, limits: Limits) -> None:
        self.number = number
        self._pid = pid
        self._pipe = pipe
        self._cpu_s = cpu_s
        self._limits = limits
        self._began_s = time.monotonic()
        self._read = bytearray()

    @property
    def answer(self) -> bytes:
        """All of it, once it is whole."""
        return bytes(self._read[: -len(_WHOLE)])

    def read(self) -> Outcome | None:
        """Take what it said; how it ended, if it has."""
        data = os.read(self._pipe, _READ_BYTES)
        self._read += data
        if len(self._read) > self._limits.answer_bytes + len(_WHOLE):
            return Outcome.TOO_LONG
        if data:
            return self.look()
        return Outcome.ANSWERED if self._read.endswith(_WHOLE) else Outcome.DIED

    def look(self) -> Outcome | None:
        """LATE if it has used what it may."""
        cpu_s = time.clock_gettime(_cpu_clock(self._pid))
        waited_s = time.monotonic() - self._began_s - cpu_s
        idle = waited_s > self._limits.waiting_s
        idle = idle and waited_s - self._starved_s() > self._limits.waiting_s
        return Outcome.LATE if idle or cpu_s > self._cpu_s else None

    def end(self) -> None:
        """Kill it, if it still lives, and keep nothing of it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)

    def _starved_s(self) -> float:
        """How long it waited for a processor; 0 where nobody counts."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0


def _cpu_clock(pid: int) -> int:
    """Linux's clock of the processor time that a process has used."""
    return (~pid << 3) | 2


def _limit_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

"""A process that answers questions in forks of its own, which may be killed or die.

Questions come from clients: answering one may hang, take all memory, or crash. A fork shares what
the process has loaded, and only its own question is lost when it ends.

A frame in: a number (8 bytes) and a question. A frame out: its number, a `QuestionOutcome` (1
byte), the answer. The first frame out says why the process cannot serve (empty: it is ready).
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import NamedTuple

from daemon.wire.blocking import BlockingChannel
from daemon.wire.frames import FrameError
from daemon.wire.parent import die_with_parent

HEAD = struct.Struct("<QB")
NUMBER = struct.Struct("<Q")
NICENESS = 5
"""On a busy machine a question of 3 ms takes four times as long, which is hardly felt."""
LOOK_S = 0.01
"""Time between two checks of a fork's use."""
_HIGHEST_FD = 1 << 16


class QuestionOutcome(IntEnum):
    """The outcome of a question."""

    ANSWERED = 0
    LATE = 1
    DIED = 2
    TOO_LONG = 3  # its answer


class QuestionLimits(NamedTuple):
    """The resources that one question may use.

    Time that a fork waits for a processor does not count: a busy machine is not the question's
    fault.
    """

    cpu_s: float
    waiting_s: float  # in total, without computing
    memory_bytes: int  # of address space, beyond what the process has
    answer_bytes: int
    cpu_s_per_byte: float = 0.0  # of the question
    most_cpu_s: float = inf  # for a question of any length
    num_answers: int = 1  # of one fork: the memory that it leaks comes back with the next fork

    def cpu_of(self, question: bytes) -> float:
        """Seconds of processor time for a question."""
        return min(self.cpu_s + self.cpu_s_per_byte * len(question), self.most_cpu_s)


Answer = Callable[[bytes], bytes]

_ANSWERED = bytes([QuestionOutcome.ANSWERED])
_TOO_LONG = bytes([QuestionOutcome.TOO_LONG])


def begin(fd: int) -> BlockingChannel:
    """The channel to the parent. The process ends with it, and ignores Ctrl-C.

    It takes processor time that others leave, and writes no core files. A session of its own is a
    scheduling group of its own where the kernel groups by sessions, and niceness then counts only
    within the group: so the group gets the same niceness.
    """
    die_with_parent(fd)
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return BlockingChannel(socket.socket(fileno=fd))


class Forks:
    """The forks, each of which answers one question at a time.

    A fork that may give several answers takes the next question, since forking takes milliseconds.
    """

    def __init__(self, answer: Answer, limits: QuestionLimits) -> None:
        """`answer` is called only in forks; an exception counts as its fork's death."""
        self._answer = answer
        self._limits = limits
        self._busy: dict[int, _Fork] = {}  # by descriptor
        self._idle: list[_Fork] = []

    def serve(self, channel: BlockingChannel) -> None:
        """Answer until the channel ends."""
        gc.freeze()  # else the first collection of each fork would copy all loaded objects
        channel.send(b"")
        while True:
            timeout_s = LOOK_S if self._busy else None
            ready = _readable([channel.fileno(), *self._busy], timeout_s)
            if channel.fileno() in ready and not self._take(channel):
                return
            for number, outcome, answer in self._ended(ready):
                channel.send(HEAD.pack(number, outcome) + answer)

    def ask(self, question: bytes) -> tuple[QuestionOutcome, bytes]:
        """Answer one question synchronously, before there is a channel."""
        self._begin(0, question)
        while True:
            for _number, outcome, answer in self._ended(_readable(list(self._busy), LOOK_S)):
                return outcome, answer

    def close(self) -> None:
        """End all forks."""
        for fork in (*self._idle, *self._busy.values()):
            fork.end()
        self._idle.clear()
        self._busy.clear()

    def _take(self, channel: BlockingChannel) -> bool:
        """Begin the questions that have come; False at the channel's end."""
        while channel.wait(0.0):
            frame = channel.receive()
            if frame is None:
                return False
            (number,) = NUMBER.unpack_from(frame)
            self._begin(number, frame[NUMBER.size :])
        return True

    def _begin(self, number: int, question: bytes) -> None:
        while self._idle and self._idle[-1].gone:
            self._idle.pop().end()
        fork = self._idle.pop() if self._idle else self._new()
        fork.begin(number, question)
        self._busy[fork.fileno()] = fork

    def _new(self) -> "_Fork":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
        if pid == 0:
            self._live(theirs)  # does not return
        theirs.close()
        return _Fork(pid, BlockingChannel(ours), self._limits)

    def _live(self, sock: socket.socket) -> None:
        """Run a fork: answer questions until the channel ends."""
        try:
            die_with_parent(sock.fileno())
            os.closerange(3, sock.fileno())  # the channel above all, whose end is the parent's
            os.closerange(sock.fileno() + 1, _HIGHEST_FD)
            _limit_memory(self._limits.memory_bytes)
            channel = BlockingChannel(sock)
            while (question := channel.receive()) is not None:
                answer = self._answer(question)
                too_long = len(answer) > self._limits.answer_bytes
                channel.send(_TOO_LONG if too_long else _ANSWERED + answer)
        finally:
            os._exit(0)

    def _ended(self, ready: list[int]) -> list[tuple[int, QuestionOutcome, bytes]]:
        ended = []
        for descriptor, fork in list(self._busy.items()):
            outcome, answer = fork.read() if descriptor in ready else (fork.look(), b"")
            if outcome is None:
                continue
            del self._busy[descriptor]
            if outcome == QuestionOutcome.ANSWERED and fork.num_asked < self._limits.num_answers:
                self._idle.append(fork)
            else:
                fork.end()
            ended.append((fork.number, outcome, answer))
        return ended


class _Fork:
    """A fork, as its parent sees it."""

    def __init__(self, pid: int, channel: BlockingChannel, limits: QuestionLimits) -> None:
        self.number = 0  # of its question
        self.num_asked = 0
        self._pid = pid
        self._channel = channel
        self._limits = limits
        self._most_cpu_s = self._began_s = self._cpu_before_s = self._starved_before_s = 0.0

    def fileno(self) -> int:
        """The descriptor of its channel."""
        return self._channel.fileno()

    @property
    def gone(self) -> bool:
        """Whether it ended while it was idle."""
        return self._channel.wait(0.0)

    def begin(self, number: int, question: bytes) -> None:
        """Give it a question."""
        self.number = number
        self.num_asked += 1
        self._most_cpu_s = self._limits.cpu_of(question)
        self._began_s = time.monotonic()
        self._cpu_before_s = self._cpu_s()
        self._starved_before_s = self._starved_s()
        with contextlib.suppress(OSError):  # it died: that shows when its answer is read
            self._channel.send(question)

    def read(self) -> tuple[QuestionOutcome, bytes]:
        """Its outcome and answer."""
        try:
            frame = self._channel.receive()
        except (OSError, FrameError):
            frame = None
        if frame is None:
            return QuestionOutcome.DIED, b""
        return QuestionOutcome(frame[0]), frame[1:]

    def look(self) -> QuestionOutcome | None:
        """LATE if it has exceeded its limits."""
        cpu_s = self._cpu_s() - self._cpu_before_s
        waited_s = time.monotonic() - self._began_s - cpu_s
        idle = waited_s > self._limits.waiting_s
        idle = (
            idle
            and waited_s - (self._starved_s() - self._starved_before_s) > self._limits.waiting_s
        )
        return QuestionOutcome.LATE if idle or cpu_s > self._most_cpu_s else None

    def end(self) -> None:
        """Kill it, if it still lives, and free its channel."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._channel.close()

    def _cpu_s(self) -> float:
        return time.clock_gettime(_cpu_clock(self._pid))

    def _starved_s(self) -> float:
        """Seconds that it waited for a processor; 0 where the kernel does not count them."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0


def _readable(descriptors: list[int], timeout_s: float | None) -> list[int]:
    """The readable descriptors: as soon as there is one, or after a timeout.

    `select` has a limit of 1023, and a child of a process with a thousand connections gets higher
    descriptors.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(None if timeout_s is None else 1e3 * timeout_s)]


def _cpu_clock(pid: int) -> int:
    """Linux's clock for the processor time of a process."""
    return (~pid << 3) | 2


def _limit_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

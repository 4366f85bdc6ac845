"""A child process joined by a socketpair: `python -m MODULE --fd N ...`."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import Signals

log = logging.getLogger(__name__)

KILLED_S = 2.0
"""Longest wait for a killed process: it may be in a system call that a device never answers."""


class Adopted:
    """A process that this one became the parent of: it is reaped as asyncio's own are."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where it is gone."""
        self.pid = pid
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._fd = os.pidfd_open(pid)
        self._loop.add_reader(self._fd, self._reap)

    def _reap(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self.returncode)

    def send_signal(self, number: int) -> None:
        """Send it a signal; raises ProcessLookupError where it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._fd, number)

    async def wait(self) -> int:
        """Its exit status; negative: the signal that ended it."""
        return await asyncio.shield(self._ended)


class Child:
    """A running child; it is ended by its own pid, never by name."""

    def __init__(self, process: asyncio.subprocess.Process | Adopted) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not been reaped yet."""
        return self._process.returncode is None

    def starved_s(self) -> float:
        """Time that its threads have waited for a processor, together; 0 where it is
        not counted.
        """
        total_ns = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                total_ns += int((thread / "schedstat").read_text().split()[1])
        return total_ns / 1e9

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP): it does not answer until it is continued."""
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def resident_bytes(self) -> int:
        """Memory that it holds; 0 where that cannot be read."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def first_thread(self) -> tuple[float, int]:
        """Processor time of its first thread (s), and how often that has waited."""
        folder = Path(f"/proc/{self.pid}/task/{self.pid}")
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran_ns = int((folder / "schedstat").read_text().split()[0])
            waits = (folder / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2]
            return ran_ns / 1e9, int(waits.split()[0])
        return 0.0, 0

    def signal(self, number: Signals) -> None:
        """Send a signal if it still runs."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit status; negative: the signal that ended it."""
        return await self._process.wait()

    async def end(self, grace_s: float, ask: Signals | None = Signals.SIGTERM) -> int:
        """Ask it to end, wait `grace_s`, then kill it; return its exit status.

        A process that does not end within `KILLED_S` even then is left to the kernel.
        """
        if ask is not None:
            self.signal(ask)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), grace_s)
        self.signal(Signals.SIGKILL)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), KILLED_S)
        log.error("process %d was killed, and the kernel does not let it end", self.pid)
        return -Signals.SIGKILL


class ChildKeeper:
    """The base of classes that keep a child running: the child, and whether another may follow."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.alive else 0

    async def _kept(self, child: Child, sock: socket.socket) -> bool:
        """Keep a new process; False if `close` came while it was started and could not end it."""
        if self._closing.is_set():
            sock.close()
            await child.end(0.0, Signals.SIGKILL)
            return False
        self._child = child
        return True


async def start_child(
    module: str, arguments: Sequence[str], descriptors: Sequence[int] = ()
) -> tuple[Child, socket.socket]:
    """Start `python -m module --fd N arguments...`; return the child and our end of its socketpair.

    The child is in a session of its own, so that Ctrl-C reaches the daemon alone, which then ends
    its children in order. `descriptors` are passed on beside the socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            "--fd",
            str(theirs.fileno()),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *descriptors),
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Child(process), ours

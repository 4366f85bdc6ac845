"""How processes and their parents belong together: they end with them, or are given to others."""

import ctypes
import os
import socket
import struct
import sys
import time
from signal import SIGKILL

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ADOPTED_S = 5.0
"""Longest time until the kernel has given a process to another parent."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the process that made a pair of sockets


def die_with_parent(fd: int = -1) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The signal is SIGKILL, since a stopped process, or one whose threads compute for ever, heeds
    nothing else; a live parent asks its children to end first. `fd` is this process's end of the
    socketpair that its parent made: if that parent is dead already, this process exits. Raises
    OSError if the kernel refuses; without Linux the end of the channel has to do.
    """
    if sys.platform != "linux":
        return
    parent = _maker(fd) if fd >= 0 else os.getppid()
    _prctl(_PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def adopt(orphans: bool) -> None:
    """Become the parent of descendants whose own parent ends, or no longer. Raises OSError if the
    kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, int(orphans))


def fork_away(fd: int) -> bool:
    """Fork a process that is the child of this one's parent, which must `adopt`; whether this is
    it. `fd`: its end of a socketpair that this parent made.

    It dies with that parent; where another process got it, or anything fails, it exits: what it has
    of this one is not to be told or closed by it. Raises OSError where none can be forked.
    """
    if (between := os.fork()) != 0:
        os.waitpid(between, 0)
        return False
    try:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        until_s, parent = time.monotonic() + _ADOPTED_S, _maker(fd)
        while os.getppid() != parent and time.monotonic() < until_s:
            time.sleep(1e-3)
        die_with_parent(fd)
    except BaseException:  # noqa: BLE001 - nothing of the process it was copied from may run on
        os._exit(1)
    return True


def is_child_of_maker(fd: int) -> bool:
    """Whether this process's parent made the socketpair of which it has an end."""
    return sys.platform == "linux" and os.getppid() == _maker(fd)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _maker(fd: int) -> int:
    """The id of the process that made this socket's pair."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[0])

"""What every child process does first: it asks the kernel to end it with its parent."""

import ctypes
import os
import socket
import struct
import sys
from signal import SIGKILL

_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of who made a pair of sockets


def die_with_parent(fd: int = -1) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    It is SIGKILL, since a process that is stopped, or whose threads compute for ever, heeds nothing
    else; whoever wants to be asked first is asked by a parent that lives. `fd` is this process's
    end of the socketpair that its parent made: where that parent is dead already, this process
    exits. Raises OSError if the kernel refuses; without Linux the end of the channel has to do.
    """
    if sys.platform != "linux":
        return
    parent = _maker(fd) if fd >= 0 else os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(0)


def _maker(fd: int) -> int:
    """The id of the process that made this socket's pair."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[0])

"""A child process's first act: it asks the kernel to end it with its parent."""

import ctypes
import os
import socket
import struct
import sys
from signal import SIGKILL

_PR_SET_PDEATHSIG = 1
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
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(0)


def _maker(fd: int) -> int:
    """The id of the process that made this socket's pair."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[0])

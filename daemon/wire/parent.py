"""What every child process does first: it asks the kernel to end it with its parent."""

import ctypes
import os
import sys
from signal import Signals

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: Signals) -> None:
    """Have the kernel send `number` to this process when the thread that started it ends.

    Exits at once if that has just happened. Raises OSError if the kernel refuses; without Linux
    the end of the channel has to do.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(0)

"""A Python that starts at once: `relay.py SOCKET -m MODULE ...`, or `-c PROGRAM ...`.

The process of the nursery forks; its fork has all that was imported, and runs the program with this
process's descriptors, folder and environment. A signal to end is passed on, and each of the two
dies a moment after the other.
"""

import json
import os
import signal
import socket
import struct
import sys

STATUS = struct.Struct("h")
"""The end of a fork: its exit status, or the signal as a negative number."""
PID = struct.Struct("i")
WITH_TORCH = ("daemon.engine.loading.fits", "daemon.engine.loading.requantise")
"""Modules of the daemon that import torch. Others start as ever; some of them refuse it."""


def _descriptors() -> list[int]:
    """Those that this process was started with."""
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    return [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]


def main() -> int:
    """Hand everything to a fork, and wait for its end."""
    home, *words = sys.argv[1:]
    executable = os.environ["LLMD_PYTHON"]
    if words[0] == "-m" and words[1] not in WITH_TORCH:
        os.execv(executable, [executable, *words])
    numbers = _descriptors()
    orders = {
        "words": words,
        "env": dict(os.environ),
        "folder": os.getcwd(),
        "numbers": numbers,
        "executable": executable,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as joined:
        joined.connect(home)
        socket.send_fds(joined, [json.dumps(orders).encode()], numbers)
        for number in numbers:
            os.close(number)
        pid = PID.unpack(joined.recv(PID.size))[0]
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda number, _frame: os.kill(pid, number))
        said = joined.recv(STATUS.size)
    status = int(STATUS.unpack(said)[0]) if said else -signal.SIGKILL
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    os._exit(main())

"""Programs as a fork of the nursery's process runs them: what `python -m` and `python -c` do."""

import fcntl
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

from tests.nursery.relay import PID

_ABOVE = 256
"""Descriptors are kept from here on until each has the number that it had."""


def run(joined: socket.socket, orders: dict[str, Any], fds: Sequence[int]) -> int:
    """Run the ordered program here; its exit status."""
    joined.send(PID.pack(os.getpid()))
    _take(orders["numbers"], fds)
    os.chdir(orders["folder"])
    os.environ.clear()
    os.environ.update(orders["env"])
    sys.executable = orders["executable"]
    words = orders["words"]
    while words[0] in ("-W", "-X"):
        words = words[2:]
    flag, program, *arguments = words
    sys.path[0] = orders["folder"]
    status = 0
    try:
        if flag == "-m":
            sys.argv = [program, *arguments]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            assert flag == "-c", flag
            sys.argv = ["-c", *arguments]
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                file.write(program)
                file.flush()
                runpy.run_path(file.name, run_name="__main__")
    except SystemExit as left:
        status = _status(left.code)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def _take(numbers: Sequence[int], fds: Sequence[int]) -> None:
    """Give descriptors the numbers that they had where the program was asked for."""
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in fds]
    for fd in fds:
        os.close(fd)
    for number, fd in zip(numbers, held, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _status(code: object) -> int:
    """The exit status of `sys.exit(code)`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1

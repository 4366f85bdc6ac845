"""The open descriptors of this process."""

import contextlib
import os


def open_descriptors() -> int:
    """The number of this process's open file descriptors."""
    return len(os.listdir("/proc/self/fd")) - 1  # the listing's own is among them


def full_pipe() -> tuple[int, int, int]:
    """A pipe's two ends, and how many `x` fill it: whoever writes waits until they are read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    return reading, writing, filled

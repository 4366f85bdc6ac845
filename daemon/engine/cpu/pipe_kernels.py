"""The CPU kernels of pipes: bytes from one process to another, over a ring in shared memory.

A pipe begins with two lines of 64 bytes: how many bytes were written, and how many of them read.
The ring lies behind them. A writer waits where the ring is full, a reader where it is empty, each
no longer than its deadline.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from numba import njit

from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.rank_kernels import LINE, WORLD, copy_bytes, waits
from daemon.engine.cpu.team import count_up, int64_pointer

LINES_BYTES = 16 * LINE
"""Bytes of a pipe before its ring."""
_READ = 8 * LINE  # the byte of the line of its reader
_YIELDS = 100
"""A stage that waits does so for milliseconds: it naps soon, and leaves its core to others."""
_PIECES = 4
"""Parts of a ring, one of which is copied at once: the other end works on the ones before."""


@njit(cache=True, fastmath=False, error_model="numpy")
def _move(a, writes):
    """Bytes from an address into the ring, or out of it; see `send_item`."""
    line, ring, own = a[5], a[5] + LINES_BYTES, 0 if writes else _READ
    at = int64_pointer(line + own)[0]
    done = 0
    while done < a[8] and int64_pointer(a[9])[0] == 0:
        place = at % a[6]
        count = min(a[8] - done, a[6] - place, a[6] // _PIECES)
        # A writer needs as many bytes to have been read before, a reader to have been written.
        counter = line + _READ if writes else line
        number = at + count - a[6] if writes else at + count
        limit_ns, clock = int64_pointer(a[9])[1], a[9] + 16
        wrong = waits(a[11], a[12], a[10], counter, number, _YIELDS, limit_ns, clock)
        if wrong != 0:
            int64_pointer(a[9])[0] = wrong * WORLD + a[10]
            return
        if writes:
            copy_bytes(a[7] + done, ring + place, count)
        else:
            copy_bytes(ring + place, a[7] + done, count)
        count_up(int64_pointer(line + own), count)
        at += count
        done += count


@ITEM
def send_item(a, _item):
    """Write bytes: a[5] pipe, a[6] bytes of its ring, a[7] the bytes, a[8] how many, a[9] as
    `rank_kernels` has it, a[10] the other end's rank, a[11] lines of all ranks, a[12] this one.
    Once something is wrong, nothing is done any more.
    """
    _move(a, True)


@ITEM
def receive_item(a, _item):
    """Read bytes; the arguments are those of `send_item`."""
    _move(a, False)

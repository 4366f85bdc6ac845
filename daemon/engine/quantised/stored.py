"""Tensors as they lie in safetensors files: where, how many bytes, and reading them in chunks."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from daemon.models.rank_shares import Range
from daemon.models.shape import ModelError
from daemon.models.weights import safetensors_header

CHUNK_BYTES = 4 * 1024 * 1024
"""Size of a read: long enough for a disk's and a link's full rate, short enough to overlap."""
_TELL_EVERY_S = 0.1

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Stored(NamedTuple):
    """A tensor in an open file."""

    file: int  # a descriptor
    start: int  # where its bytes begin
    size_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class LoadMeter:
    """Counts loaded bytes, from any thread, and reports the share of all a few times a second."""

    def __init__(self, total_bytes: int, tell: Callable[[float], None]) -> None:
        self._total_bytes = max(total_bytes, 1)
        self._tell = tell
        self._done_bytes = 0
        self._next_s = 0.0
        self._lock = threading.Lock()

    @property
    def done_bytes(self) -> int:
        """Bytes that are loaded so far."""
        return self._done_bytes

    def add(self, num_bytes: int) -> None:
        """Count `num_bytes` more bytes."""
        with self._lock:  # reported under the lock: shares never go back
            self._done_bytes += num_bytes
            now = time.monotonic()
            if now >= self._next_s:
                self._next_s = now + _TELL_EVERY_S
                self._tell(min(1.0, self._done_bytes / self._total_bytes))


def tells_together(tell: Callable[[float], None]) -> tuple[Callable[[float], None], ...]:
    """Two ways to tell shares of the same whole, of which `tell` gets the sum."""
    shares, lock = [0.0, 0.0], threading.Lock()

    def told(which: int, share: float) -> None:
        with lock:
            shares[which] = share
            tell(min(1.0, sum(shares)))

    return partial(told, 0), partial(told, 1)


def stored_tensors(
    path: Path, file: int, name_of: Callable[[str], str | None]
) -> dict[str, Stored]:
    """The tensors of a safetensors file, open at the descriptor `file`, by the names that `name_of`
    gives them; those without one are left out. Raises ModelError.
    """
    header, begin = safetensors_header(path)
    length = os.fstat(file).st_size
    found = {}
    for stored_name, entry in header.items():
        name = name_of(stored_name)
        if name is None:
            continue
        try:
            first, last = entry["data_offsets"]
            stored = Stored(
                file, begin + first, last - first, _DTYPES[entry["dtype"]], tuple(entry["shape"])
            )
            fits = stored.size_bytes == math.prod(stored.shape) * stored.dtype.itemsize
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: the tensor {name} is of no known kind: {error!r}") from None
        if not fits or first < 0 or stored.start + stored.size_bytes > length:
            raise ModelError(f"{path} is not whole: the tensor {name} lies outside of it")
        found[name] = stored
    return found


def chunks(stored: Stored) -> Iterator[tuple[int, int]]:
    """The offset in the file and the bytes of each chunk of a tensor."""
    end = stored.start + stored.size_bytes
    for start in range(stored.start, end, CHUNK_BYTES):
        yield start, min(CHUNK_BYTES, end - start)


def read_exactly(file: int, start: int, buffer: memoryview) -> None:
    """Fill `buffer` from a file. Raises ModelError where the file ends before."""
    while buffer:
        count = os.preadv(file, [buffer], start)
        if not count:
            raise ModelError("a file of weights became shorter while it was read")
        buffer, start = buffer[count:], start + count


def read_rows(stored: Stored, meter: LoadMeter, rows: Range | None = None) -> torch.Tensor:
    """Rows of a tensor, or all of it, read a chunk at a time. Raises ModelError."""
    start, shape = stored.start, stored.shape
    if rows is not None:
        start += rows.first * (stored.size_bytes // max(1, shape[0]))
        shape = (rows.size, *shape[1:])
    found = torch.empty(shape, dtype=stored.dtype)
    buffer = bytes_of(found)
    for at, size_bytes in chunks(stored._replace(start=start, size_bytes=found.nbytes)):
        read_exactly(stored.file, at, buffer[at - start : at - start + size_bytes])
        meter.add(size_bytes)
    return found


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a dense tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())

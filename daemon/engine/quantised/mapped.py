"""Files of weights that are mapped into memory, and a thread that reads their pages.

On a CPU the pages are the weights, without a copy. Who computes with one that is not there yet
waits for it alone, so a model may be put together, and may compute with its first layers, while the
last ones are read.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch

from daemon.engine.quantised.cut import Cut, read_cut
from daemon.engine.quantised.stored import CHUNK_BYTES, LoadMeter, Stored

_PAGE_BYTES = 4096


class PageReader:
    """A thread that reads parts of mapped files in the order in which it is asked for them."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.leaves = False  # what is not begun yet
        self._thread = threading.Thread(target=self._work, name="pages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until all is read; behind an exception leave the rest."""
        self.leaves = kind is not None
        self._asked.put(None)
        self._thread.join()

    def ask(self, read: Callable[[], None]) -> None:
        """Have a part read that is soon computed with."""
        self._asked.put(read)

    def _work(self) -> None:
        while (read := self._asked.get()) is not None and not self.leaves:
            read()


class MappedFile:
    """A file's bytes as a tensor; the pages of a part are read when it is taken, and counted."""

    def __init__(self, path: Path, meter: LoadMeter, reader: PageReader | None = None) -> None:
        """`reader`: reads what is wanted later; None: all is read at once."""
        size_bytes = path.stat().st_size
        self._data = torch.from_file(str(path), shared=False, size=size_bytes, dtype=torch.uint8)
        self._meter = meter
        self._path = path
        self._reader = reader

    def part(self, start: int, size_bytes: int, *, later: bool = False) -> torch.Tensor:
        """uint8 [size_bytes], a view. `later`: its bytes are not looked at yet."""
        part = self._data[start : start + size_bytes]
        if later and self._reader is not None:
            self._reader.ask(lambda: self._read(part))
        else:
            self._read(part)
        return part

    def columns(self, start: int, sides: tuple[int, int], cut: Cut) -> torch.Tensor:
        """Some columns of uint8 of these `sides`, copied: the others' pages are not kept."""
        with self._path.open("rb") as file:
            size_bytes = sides[0] * sides[1]
            stored = Stored(file.fileno(), start, size_bytes, torch.uint8, sides)
            return read_cut(stored, cut, self._meter)

    def _read(self, part: torch.Tensor) -> None:
        for piece in part.split(CHUNK_BYTES):
            piece[::_PAGE_BYTES].sum()
            self._meter.add(len(piece))

"""A journal's file: frames are written whole or not at all, and a `Gap` marks missing events.

Nothing here raises for I/O: on a fault events are dropped and counted, the fault is logged once,
and writing goes on when it can.
"""

import errno
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from daemon.core.values.events import Configured
from daemon.journal.records import FILE_NAME, Gap, frame, rotate
from daemon.wire.faults import faults

log = logging.getLogger(__name__)

WELL_CHUNKS = 10
"""Chunks written in a row before a fault counts as over: small ones may fit a disk that is too full
for others.
"""


class Chunk(NamedTuple):
    """Frames that belong together, and the facts needed to write or to drop them."""

    frames: bytes
    num_events: int  # in the frames; a checkpoint is none
    begins_file: bool  # rotate the current file first
    num_missing: int = 0  # events that were dropped before this chunk and never came here


class JournalFile:
    """The newest file of a folder, from its first chunk on; each begins with the configuration."""

    def __init__(self, folder: Path, config: Configured) -> None:
        self.num_dropped = 0  # events
        self.num_losses = 0  # chunks
        self.error = ""  # the newest
        self._folder = folder
        self._config = config
        self._file = -1
        self._size_bytes = 0  # of whole frames in the file
        self._torn = False  # a piece of a frame may follow them
        self._missing = 0  # events, since the last that was written
        self._ill = 0  # chunks still to write before the fault is over
        self._faults = faults("journal.")

    def take(self, chunk: Chunk) -> None:
        """Write a chunk, or drop it and count it."""
        self._missing += chunk.num_missing
        try:
            if chunk.begins_file:
                self._end_file()
            if self._file < 0:
                self._open()
            if not self._size_bytes:
                self._write(frame(self._config))
            if self._missing:
                self._write(frame(Gap(self._missing)))
                self._missing = 0
            self._write(chunk.frames)
        except OSError as error:
            self._lose(chunk, error)
        else:
            self._written()

    def close(self) -> None:
        """Close the file."""
        try:
            self._end_file()
        except OSError as error:  # closing reports delayed write errors
            log.warning("the journal may miss its last events: %s", error)

    def _lose(self, chunk: Chunk, error: OSError) -> None:
        self.error = str(error)
        self.num_dropped += chunk.num_events
        self.num_losses += 1
        self._missing += chunk.num_events
        if not self._ill:
            log.warning("the journal cannot be written, its events are dropped: %s", error)
        self._ill = WELL_CHUNKS

    def _written(self) -> None:
        if self._ill:
            self._ill -= 1
            if not self._ill:
                log.warning("the journal is written again; it misses %d events", self.num_dropped)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        rotate(self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._folder / FILE_NAME, flags, 0o600)
        self._size_bytes = 0
        self._torn = False

    def _end_file(self) -> None:
        file, self._file = self._file, -1
        self._size_bytes = 0
        if file >= 0:
            os.close(file)

    def _write(self, data: bytes) -> None:
        """All of it or nothing: a frame cut in half would hide every later one."""
        if self._faults.strikes("journal.stall"):
            time.sleep(self._faults["journal.stall"].seed / 1e3)
        if self._torn:
            self._cut()
        written = 0
        try:
            if self._faults.strikes("journal.full"):
                raise OSError(errno.ENOSPC, "no space left on device: injected")
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(self._file, rest, self._size_bytes + written)
        except OSError:
            self._torn = True
            self._cut()
            raise
        self._size_bytes += written

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size_bytes)
        self._torn = False

"""A thread that writes the journal's file: a disk that stalls delays nothing else.

Chunks wait in a bounded queue; a chunk that does not fit is dropped, counted and logged once. The
next chunk that fits carries the number of events missing before it.
"""

import logging
import threading
import time
from collections import deque

from daemon.journal.file import Chunk, JournalFile

log = logging.getLogger(__name__)

QUEUE_BYTES = 16 * 1024 * 1024
"""Most bytes of waiting chunks: some minutes of busy serving."""
STALLED_S = 10.0
"""Time for one chunk after which a warning is logged."""
CLOSE_S = 2.0
"""Longest wait for the disk at the end."""


class FileBeside:
    """A `JournalFile` behind a thread; no other thread may touch the file from now on. Only `close`
    waits for it, for `CLOSE_S` at most.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._queue: deque[Chunk] = deque()
        self._queued_bytes = 0  # the one that is being written included
        self._changed = threading.Condition()
        self._closing = False
        self._num_refused = 0  # chunks
        self._num_refused_events = 0
        self._missing = 0  # events refused since the last accepted chunk
        self._begins_file = False  # a chunk that was to begin a file was refused
        self._full = False
        self._began_s = 0.0  # start of the write under way; 0: none
        self._stalls = False  # a stall that has been logged
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)

    @property
    def num_dropped(self) -> int:
        """Events that did not, and will not, reach the file."""
        return self._file.num_dropped + self._num_refused_events

    @property
    def num_losses(self) -> int:
        """Chunks that did not, and will not, reach the file."""
        return self._file.num_losses + self._num_refused

    @property
    def error(self) -> str:
        """The file's newest error."""
        return self._file.error

    def take(self, chunk: Chunk) -> None:
        """Queue a chunk, or drop it and count it."""
        size_bytes = len(chunk.frames)
        self._look_for_stall()
        if self._queued_bytes and self._queued_bytes + size_bytes > QUEUE_BYTES:
            self._refuse(chunk)
            return
        begins = chunk.begins_file or self._begins_file
        chunk = chunk._replace(begins_file=begins, num_missing=self._missing)
        self._missing, self._begins_file = 0, False
        if self._full and not self._queued_bytes:
            self._full = False
            log.warning("the journal's disk keeps up again; %d events miss", self.num_dropped)
        with self._changed:
            self._queue.append(chunk)
            self._queued_bytes += size_bytes
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Have the thread write the waiting chunks and close the file; log a failure."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._file.close()
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the journal misses its end: its disk did not answer in %g s", CLOSE_S)

    def _look_for_stall(self) -> None:
        began_s = self._began_s
        stalls = began_s > 0.0 and time.monotonic() - began_s > STALLED_S
        if stalls and not self._stalls:
            log.warning("the journal's disk has not answered for %g s, events wait", STALLED_S)
        self._stalls = stalls

    def _refuse(self, chunk: Chunk) -> None:
        if not self._full:
            log.warning("the journal's disk does not keep up, events are dropped")
        self._full = True
        self._num_refused += 1
        self._num_refused_events += chunk.num_events
        self._missing += chunk.num_events
        self._begins_file |= chunk.begins_file

    def _work(self) -> None:
        """Run on the thread: write chunk after chunk, then close."""
        while (chunk := self._next()) is not None:
            self._began_s = time.monotonic()
            self._file.take(chunk)
            self._began_s = 0.0
            with self._changed:
                self._queued_bytes -= len(chunk.frames)
        self._file.close()

    def _next(self) -> Chunk | None:
        """Wait for the next chunk; None once all are written and nothing more comes."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

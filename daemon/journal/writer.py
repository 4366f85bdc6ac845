"""Appends Core events to a file, off the hot path, and never stops serving for it."""

import errno
import os
from pathlib import Path

from daemon.core.checkpoint import checkpoint
from daemon.core.core import Core
from daemon.core.events import Configured, Event
from daemon.journal.records import FILE_NAME, FRAME_LENGTH, Gap, Record, rotate
from daemon.wire.columns import encoder
from daemon.wire.faults import faults

FLUSH_BYTES = 128 * 1024
FLUSH_S = 1.0


class JournalWriter:
    """The journal of one daemon: `append` each event before the Core handles it, then `maintain`.

    Events wait in memory for at most `FLUSH_S` or `FLUSH_BYTES`; what a killed process had not
    written is lost. A full disk or an I/O error drops them: they are counted in `num_dropped`, a
    `Gap` marks the place, and writing resumes when it can. Nothing here raises for I/O.

    Exact replay needs a Core's state where a file begins, and only an idle Core is small enough to
    write down. So a file that has reached `max_bytes` is rotated at the next idle moment, with a
    `Checkpoint`; a Core that is never idle lets it grow to twice that and then begins a file that
    says, with a `Gap`, that it cannot be replayed before its first `Checkpoint`.
    """

    def __init__(self, folder: Path, max_bytes: int, config: Configured) -> None:
        self.num_dropped = 0
        self.error = ""
        self._folder = folder
        self._max_bytes = max_bytes
        self._config = config
        self._encode = encoder().encode
        self._buffer = bytearray()
        self._buffered_events = 0
        self._gap_events = 0
        self._gap = False
        self._file = -1
        self._size_bytes = 0  # of whole frames in the file
        self._event_bytes = 0  # of them, and of those buffered; a checkpoint does not count
        self._flushed_s = config.now
        self._full = faults("journal.").get("journal.full")

    def append(self, event: Event) -> None:
        """Take one event; it reaches the file with the next flush."""
        self._event_bytes += self._put(event)
        self._buffered_events += 1
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush(event.now)

    def maintain(self, core: Core, now: float) -> None:
        """Flush what has waited long enough, rotate a full file, close gaps. Cheap; call often."""
        if now - self._flushed_s >= FLUSH_S:
            self.flush(now)
        full = self._event_bytes >= self._max_bytes
        if (full or self._gap) and core.idle:
            self.flush(now)
            if full:
                self._begin()
            self._gap = False
            self._put(checkpoint(core, now))
        elif self._event_bytes >= 2 * self._max_bytes:
            self.flush(now)
            self._begin()
            self._gap = True
            self._put(Gap(0))

    def flush(self, now: float) -> None:
        """Write what is buffered, or drop it and count it."""
        self._flushed_s = now
        if not self._buffer:
            return
        try:
            if self._file < 0:
                self._open()
            if not self._size_bytes:
                self._write(self._frame(self._config))
            if self._gap_events:
                self._write(self._frame(Gap(self._gap_events)))
                self._gap_events = 0
            self._write(self._buffer)
        except OSError as error:
            self.error = str(error)
            self.num_dropped += self._buffered_events
            self._gap_events += self._buffered_events
            self._gap = True
        self._buffer.clear()
        self._buffered_events = 0

    def close(self, now: float) -> None:
        """Flush and close."""
        self.flush(now)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _put(self, record: Record) -> int:
        frame = self._frame(record)
        self._buffer += frame
        return len(frame)

    def _frame(self, record: Record) -> bytes:
        payload = self._encode(record)
        return FRAME_LENGTH.pack(len(payload)) + payload

    def _begin(self) -> None:
        """The next flush starts a file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._size_bytes = self._event_bytes = 0

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        rotate(self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._folder / FILE_NAME, flags, 0o600)

    def _write(self, data: bytes | bytearray) -> None:
        """All of it or nothing: a frame cut in half would hide every later one."""
        written = 0
        try:
            if self._full is not None and self._full.strikes():
                raise OSError(errno.ENOSPC, "no space left on device: injected")
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(self._file, rest, self._size_bytes + written)
        except OSError:
            os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += written

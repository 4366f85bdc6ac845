"""Collects Core events for a journal file, off the hot path, and never stops serving for it."""

from pathlib import Path

from daemon.core.core import Core
from daemon.core.values.events import Configured, Event
from daemon.core.view.checkpoint import Checkpoint, checkpoint
from daemon.journal.beside import FileBeside
from daemon.journal.file import Chunk, JournalFile
from daemon.journal.records import Gap, Note, Record, frame

FLUSH_BYTES = 128 * 1024
FLUSH_S = 1.0


class JournalWriter:
    """The journal of one daemon: `append` each event before the Core handles it, then `maintain`.

    Events wait in memory for at most `FLUSH_S` or `FLUSH_BYTES`; a killed process loses those. With
    `beside` a thread writes them, and serving does not wait for the disk. A full disk, an I/O error
    or a disk that stalls for too long drops them: they are counted in `num_dropped`, a `Gap` marks
    the place, and writing resumes when it can. Nothing here raises for I/O.

    Exact replay needs the Core's state at the beginning of a file, and only an idle Core is small
    enough to write down. So a file that has reached `max_bytes` is rotated at the next idle moment,
    with a `Checkpoint`. If the Core is never idle the file grows to twice that size; then the next
    file begins with a `Gap`: it cannot be replayed before its first `Checkpoint`.
    """

    def __init__(
        self, folder: Path, max_bytes: int, config: Configured, beside: bool = False
    ) -> None:
        file = JournalFile(folder, config)
        self._file = FileBeside(file) if beside else file
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._buffered_events = 0
        self._begins_file = True  # the next chunk
        self._losses_seen = 0
        self._gap = False  # a checkpoint is wanted
        self._event_bytes = 0  # since the file began; a checkpoint does not count
        self._flushed_s = config.now

    @property
    def num_dropped(self) -> int:
        """Events that the journal misses."""
        return self._file.num_dropped

    @property
    def error(self) -> str:
        """The newest error; empty: all could be written."""
        return self._file.error

    def goes_on_from(self, state: Checkpoint) -> None:
        """Record the state in which the Core of the following events begins."""
        self._put(state)

    def append(self, event: Event) -> None:
        """Take an event; the next flush writes it to the file."""
        self._event_bytes += self._put(event)
        self._buffered_events += 1
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush(event.now)

    def note(self, now: float, text: str) -> None:
        """Record a decision of the Core, behind the event that led to it."""
        self._event_bytes += self._put(Note(now, text))

    def maintain(self, core: Core, now: float) -> None:
        """Flush what has waited long enough, rotate a full file, close gaps. Cheap; call often."""
        if now - self._flushed_s >= FLUSH_S:
            self.flush(now)
        if self._file.num_losses != self._losses_seen:
            self._losses_seen = self._file.num_losses
            self._gap = True
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
        """Hand on the buffered records."""
        self._flushed_s = now
        if not self._buffer:
            return
        self._file.take(Chunk(bytes(self._buffer), self._buffered_events, self._begins_file))
        self._begins_file = False
        self._buffer.clear()
        self._buffered_events = 0

    def close(self, now: float) -> None:
        """Flush and close."""
        self.flush(now)
        self._file.close()

    def _put(self, record: Record) -> int:
        framed = frame(record)
        self._buffer += framed
        return len(framed)

    def _begin(self) -> None:
        """Have the next chunk start a file."""
        self._begins_file = True
        self._event_bytes = 0

"""Recordings: all messages to a viewer, in a file that another viewer can play.

A line names the format. Then, for each message: its time (float64, seconds of the recorder's
clock), its length and its CRC-32 (uint32 each, little-endian), and the message as the daemon sent
it. Each is flushed whole, so that a viewer that dies leaves a usable recording.
"""

import mmap
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.control.client import ControlError, Message, decoded, encoded
from daemon.protocol.control import FRAME_LIMIT_BYTES

FIRST_LINE = b"llmd-top recording 1\n"
LIMIT_BYTES = 256 << 20

_HEAD = struct.Struct("<dII")


class RecordingError(Exception):
    """A recording cannot be made or played; the text names the file and the place in it."""


class RecordingWriter:
    """Writes a new file of up to `limit_bytes`, then nothing more."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self.size_bytes = 0
        self.trouble = ""  # why it stopped, if it did
        self._limit_bytes = limit_bytes
        try:
            self._file = path.open("xb")
            self._put(FIRST_LINE)
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error.strerror}") from error

    def write(self, time_s: float, message: Message) -> None:
        """Append a message; a full disk or file ends the recording alone."""
        if self.trouble:
            return
        payload = encoded(message)
        record = _HEAD.pack(time_s, len(payload), zlib.crc32(payload)) + payload
        if self.size_bytes + len(record) > self._limit_bytes:
            self.trouble = "the recording is full"
            return
        try:
            self._put(record)
        except OSError as error:
            self.trouble = f"cannot record: {error.strerror}"

    def close(self) -> None:
        """End the recording."""
        self._file.close()

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        self.size_bytes += len(data)


class _Record(NamedTuple):
    time_s: float
    start: int
    end: int


class Recording:
    """A recording's messages by number. Raises RecordingError where the file is no recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False  # the last message is not whole: its recorder died
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:  # mmap's word for an empty file is a ValueError
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise RecordingError(f"cannot play {path}: {why}") from error
        if self._data[: len(FIRST_LINE)] != FIRST_LINE:
            raise RecordingError(f"{path} is no recording of llmd-top")
        self._records = self._index()
        if not self._records:
            raise RecordingError(f"{path} holds no message")

    def __len__(self) -> int:
        return len(self._records)

    def time_s(self, number: int) -> float:
        """The time of a message, in seconds after the first."""
        return self._records[number].time_s - self._records[0].time_s

    def message(self, number: int) -> Message:
        """A message. Raises RecordingError if this llmd-top does not understand it."""
        record = self._records[number]
        try:
            return decoded(self._data[record.start : record.end])
        except (msgspec.MsgspecError, ControlError, ValueError) as error:
            raise self._damaged(record.start, str(error)) from error

    def _index(self) -> list[_Record]:
        records: list[_Record] = []
        place, size = len(FIRST_LINE), len(self._data)
        while place + _HEAD.size <= size:
            time_s, length, checksum = _HEAD.unpack_from(self._data, place)
            start = place + _HEAD.size
            end = start + length
            if length > FRAME_LIMIT_BYTES or (records and not time_s >= records[-1].time_s):
                raise self._damaged(place, "no message begins there")
            if end > size:
                break
            if zlib.crc32(self._data[start:end]) != checksum:
                raise self._damaged(start, "the message's checksum differs")
            records.append(_Record(time_s, start, end))
            place = end
        self.cut_off = place < size
        return records

    def _damaged(self, place: int, why: str) -> RecordingError:
        return RecordingError(f"{self.path} is damaged at byte {place}: {why}")

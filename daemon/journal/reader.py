"""Read a journal file, record by record."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from daemon.core.values.events import Configured
from daemon.journal.older_names import renamed, with_todays_tag
from daemon.journal.records import FRAME_LENGTH, RECORD_LIMIT_BYTES, Record
from daemon.wire.columns import decoder


class JournalError(Exception):
    """The file is not a journal, or is damaged elsewhere than at its end."""


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record of a file; a tail cut off by a crash ends it cleanly. Policies and
    operators' orders have today's names.

    Raises JournalError for a file that is no journal, OSError for one that cannot be read.
    """
    yield from renamed(_records(path))


def _records(path: Path) -> Iterator[Record]:
    decode = decoder(Record).decode
    first = True
    with path.open("rb") as file:
        for offset, payload in _frames(file):
            try:
                record = _decoded(decode, payload)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise JournalError(f"{path}: damaged at byte {offset}: {error}") from error
            if first and not isinstance(record, Configured):
                raise JournalError(f"{path}: does not begin with the Core's configuration")
            first = False
            yield record


def _decoded(decode: Callable[[bytes], Record], payload: bytes) -> Record:
    try:
        return decode(payload)
    except msgspec.ValidationError:
        return decode(with_todays_tag(payload))


def _frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every whole frame."""
    offset = 0
    while len(header := file.read(FRAME_LENGTH.size)) == FRAME_LENGTH.size:
        (length,) = FRAME_LENGTH.unpack(header)
        if length > RECORD_LIMIT_BYTES:
            raise JournalError(f"{file.name}: a record of {length} bytes at byte {offset}")
        payload = file.read(length)
        if len(payload) < length:
            return
        yield offset, payload
        offset += FRAME_LENGTH.size + length

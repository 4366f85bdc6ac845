"""The records of a journal file, and their frames.

A file is a row of frames: a little-endian uint32 length, then one msgpack record. It starts with
`Configured`. The events that follow it, or that follow a `Checkpoint`, replay exactly up to the
next `Gap`.
"""

import os
import struct
from pathlib import Path

import msgspec

from daemon.core.values.events import Event
from daemon.core.view.checkpoint import Checkpoint
from daemon.wire.columns import encoder

FILE_NAME = "journal.llmd"
OLDER_FILE_NAME = "journal.old.llmd"
FRAME_LENGTH = struct.Struct("<I")
RECORD_LIMIT_BYTES = 64 * 1024 * 1024


class Gap(msgspec.Struct, frozen=True, tag="Gap", array_like=True):
    """Events are missing here, or the file begins in mid-life: replay needs a `Checkpoint`."""

    num_dropped: int


class Note(msgspec.Struct, frozen=True, tag="Note", array_like=True):
    """A decision of the Core, in words, after the event that led to it; replay does not need it."""

    now: float
    text: str


Record = Event | Checkpoint | Gap | Note

_encode = encoder().encode


def frame(record: Record) -> bytes:
    """A record's bytes in the file."""
    payload = _encode(record)
    return FRAME_LENGTH.pack(len(payload)) + payload


def rotate(folder: Path) -> None:
    """Make the current file the older one, if there is a current one."""
    current = folder / FILE_NAME
    if current.exists():
        os.replace(current, folder / OLDER_FILE_NAME)

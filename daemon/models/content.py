"""A large file's name by its content, read once while the file does not change.

Two copies have the same name wherever they lie and whenever they were written. All of a file is
hashed: fine-tunes of one model may differ in a few rows of one tensor, which samples would miss.
What was hashed is remembered below the cache folder with the file's size, inode and times, so
that a start looks at the file's entry alone.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.base.files import write_whole


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was when it was hashed."""

    path: str
    size_bytes: int
    inode: int
    modified_ns: int
    changed_ns: int
    digest: str = ""


def content_digest(
    path: Path, cache: Path, look: Callable[[Path], object] = lambda _path: None
) -> str:
    """16 hexadecimal digits of what the file at an absolute path holds.

    `look` is called before the file is read. Raises OSError, and what `look` raises.
    """
    kept = cache / "contents" / f"{_short(path)}.json"
    stat = path.stat()
    now = _Known(str(path), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        known = msgspec.json.decode(kept.read_bytes(), type=_Known)
        if msgspec.structs.replace(known, digest="") == now and known.digest:
            return known.digest
    look(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    with contextlib.suppress(OSError):  # it is hashed again the next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, msgspec.json.encode(msgspec.structs.replace(now, digest=digest)))
    return digest


def _short(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()

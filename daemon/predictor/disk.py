"""Files of what was learned: replaced whole or not at all, readable by their owner alone."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FILE_MODE = 0o600
MOST_ASIDE = 4
"""Files that are kept aside; none of them is ever replaced, so that one more stays where it is."""


def read_file(path: Path) -> bytes | None:
    """The file's bytes; None if there is no file. Raises OSError where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_file(path: Path, data: bytes) -> bool:
    """Put `data` in the file's place; whether that went well. A crash leaves the old file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "wb"
        ) as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
        return False
    return True


def set_aside(path: Path) -> Path | None:
    """Rename a file that cannot be used to NAME.corrupt, or NAME.corrupt.1 if that is there, and so
    on; the name, or None if it stays where it is.
    """
    endings = [".corrupt", *(f".corrupt.{number}" for number in range(1, MOST_ASIDE))]
    free = [ending for ending in endings if not os.path.lexists(f"{path}{ending}")]
    if not free:
        log.warning("%s cannot be set aside: there are %d such files", path, MOST_ASIDE)
        return None
    aside = path.with_name(path.name + free[0])
    try:
        os.rename(path, aside)
    except OSError as error:
        log.warning("%s cannot be set aside: %s", path, error.strerror)
        return None
    return aside


def remove(path: Path) -> None:
    """Delete a file if it is there; a warning if it cannot be deleted."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be deleted: %s", path, error.strerror)


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files of what was learned: replaced whole or not at all, readable by their owner alone."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FILE_MODE = 0o600


def read_file(path: Path) -> bytes | None:
    """The file's bytes; None, with a warning unless it is merely missing, if there are none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
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


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used to NAME.corrupt, and say under which name it is kept."""
    aside = path.with_name(f"{path.name}.corrupt")
    try:
        os.replace(path, aside)
    except OSError as error:
        log.warning("%s cannot be set aside: %s", path, error.strerror)
        return path
    return aside


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The limits that cards had before any lease, kept on disk before a card is changed.

After a crash the next start finds in this file which limits to restore.
"""

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from daemon.powerd.frames import PowerError, Uuid

MOST_BYTES = 64 * 1024
MOST_ASIDE = 100

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OLD = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A link is not followed, and opening a pipe does not wait for its writer."""
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors of a link, a folder or a socket in the file's place."""

log = logging.getLogger(__name__)

_Milliwatts = Annotated[int, msgspec.Meta(gt=0, le=10_000_000)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    limits_mw: dict[Uuid, _Milliwatts]
    boot_id: str = ""
    """The machine's start in which these were the limits; empty: not known."""


class SavedLimits:
    """Original limits by card UUID, in memory as in the file. One process holds it."""

    def __init__(self, path: Path) -> None:
        """Lock and read the file. Raises PowerError if another process has it, or it is unusable.

        A damaged file is renamed, and then there are no limits.
        """
        self._path = path
        self._boot_id = _boot_id()
        self._lock_fd = _locked(path)
        try:
            self._limits_mw = _read(path, self._boot_id)
        except BaseException:
            self.close()
            raise

    @property
    def limits_mw(self) -> Mapping[str, int]:
        """The original limit of each card whose limit is or may be another now."""
        return self._limits_mw

    def remember(self, device: str, limit_mw: int) -> None:
        """Keep a card's original limit. It is on the disk afterwards, or PowerError is raised.

        A stored limit is never replaced: the card's current limit may come from a lease.
        """
        if device not in self._limits_mw:
            self._write({**self._limits_mw, device: limit_mw})

    def forget(self, device: str) -> None:
        """A card has its original limit again. Raises PowerError."""
        if device in self._limits_mw:
            self._write({name: mw for name, mw in self._limits_mw.items() if name != device})

    def close(self) -> None:
        """Release the file for another process."""
        os.close(self._lock_fd)

    def _write(self, limits_mw: dict[str, int]) -> None:
        data = msgspec.json.encode(_Saved(version=1, limits_mw=limits_mw, boot_id=self._boot_id))
        partial = self._path.with_name(f".{self._path.name}.partial")
        try:
            partial.unlink(missing_ok=True)  # a link would lead elsewhere
            with open(os.open(partial, _NEW, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            raise PowerError(f"{self._path} cannot be written: {error.strerror}") from error
        self._limits_mw = limits_mw


def _locked(path: Path) -> int:
    """A lock on `PATH.lock`, which the kernel releases when its holder dies."""
    place = path.with_name(f"{path.name}.lock")
    try:
        fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PowerError(f"{place} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise PowerError(f"another llmd-powerd has {path}") from error
    return fd


def _boot_id() -> str:
    """The id of this start of the machine; empty where the kernel does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _read(path: Path, boot_id: str) -> dict[str, int]:
    """The limits in a file; empty if there is none, or it is damaged.

    Also empty if it was written before the machine was started: cards forget their limits then, and
    have their own ones. Raises PowerError where the file cannot be read for now, which says nothing
    about its content.
    """
    try:
        saved = msgspec.json.decode(_bytes_of(path), type=_Saved)
        if saved.boot_id in {"", boot_id} or not boot_id:
            return saved.limits_mw
        log.info("%s is from before the machine was started: no card has a lease's limit", path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise PowerError(f"{path} cannot be read: {error.strerror}") from error
        _put_aside(path, error)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _put_aside(path, error)
    return {}


def _bytes_of(path: Path) -> bytes:
    """The file's bytes. Raises OSError, and ValueError for a non-file or a file that is
    too large.
    """
    with open(os.open(path, _OLD), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return data


def _put_aside(path: Path, error: Exception) -> None:
    """Rename a damaged file, to a free name if there is one. Raises PowerError."""
    names = [path.with_name(f"{path.name}.damaged-{n}") for n in range(1, MOST_ASIDE + 1)]
    aside = next((name for name in names if not os.path.lexists(name)), names[-1])
    try:
        os.replace(path, aside)
    except OSError as failure:
        raise PowerError(f"{path} is damaged and cannot be renamed: {failure}") from failure
    log.error(
        "%s is damaged (%s); it is %s now. A card that had a lease may have kept its limit: "
        "compare `nvidia-smi -q -d POWER`",
        path,
        error,
        aside,
    )


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

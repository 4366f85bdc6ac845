"""The place of the control socket: one daemon's at a time, cleared of a dead daemon's leftovers."""

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path

LOCK_SUFFIX = ".lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ANOTHER = "--socket PATH gives this one a socket of its own"
LONGEST_PATH = 107
"""Longest path of a Unix socket in bytes: the kernel's field, less the zero at its end."""


class SocketPlace:
    """A path for a listening Unix socket, held by a lock on the file `PATH.lock` beside it.

    The kernel releases the lock when its holder dies, however it dies. The lock's file stays: to
    remove it would let two daemons lock two files of the same name.
    """

    def __init__(self, path: Path, *, makes_folder: bool = False) -> None:
        """`makes_folder`: make the folder if it is missing, as for a default path; a mistyped
        folder is not made.
        """
        self._path = path
        self._makes_folder = makes_folder
        self._lock_fd = -1
        self._inode = 0

    def take(self) -> socket.socket:
        """A socket bound at the path with mode 0660; it does not listen before its mode is set.

        Raises FileExistsError if another daemon lives there or the path is something else than a
        socket, FileNotFoundError if there is no such folder, PermissionError if the folder is not
        ours, other OSErrors as they come.
        """
        _refuse_long(self._path)
        if self._makes_folder:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_missing(self._path)
        _check_folder(self._path.parent)
        self._lock()
        try:
            _remove_stale(self._path)
            sock = _bound(self._path)
        except BaseException:
            self.give_back()
            raise
        self._inode = self._path.stat().st_ino
        return sock

    def give_back(self) -> None:
        """Remove the socket's file, if it is still ours, and unlock; may be called twice."""
        if self._lock_fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _lock(self) -> None:
        path = _lock_path(self._path)
        fd = os.open(path, _LOCK_FLAGS | os.O_CREAT, 0o600)
        try:
            _flock(fd, fcntl.LOCK_EX, path)
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd
        with contextlib.suppress(OSError):  # a full disk: then the holder's process id is unknown
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def place_fault(path: Path, *, makes_folder: bool = False) -> str:
    """The fault that `SocketPlace.take` would meet, found without making anything; empty: none.

    An existing lock file is locked for a moment, in a mode that other checks can share.
    """
    try:
        folder = nearest_folder(path.parent)
        if not makes_folder:
            _refuse_missing(path)
        if path.parent.exists():
            _check_folder(path.parent)
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} cannot be written"
        _refuse_long(path)
        _ask(path)
        _try_lock(_lock_path(path))
    except OSError as error:
        return str(error)
    return ""


def nearest_folder(folder: Path) -> Path:
    """The folder, or its nearest existing parent. Raises NotADirectoryError for a file."""
    for candidate in (folder, *folder.absolute().parents):
        if candidate.is_dir():
            return candidate
        if candidate.exists():
            raise NotADirectoryError(f"{candidate} is not a folder")
    return folder


def _refuse_long(path: Path) -> None:
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"{path}: a socket's path has at most {LONGEST_PATH} bytes")


def _refuse_missing(path: Path) -> None:
    if not path.parent.exists():
        nearest_folder(path.parent)
        said = f"{path.parent}: there is no such folder for the socket {path.name}"
        raise FileNotFoundError(f"{said}; --socket names another path")


def _check_folder(folder: Path) -> None:
    """Refuse another user's folder where all users may make folders: it could be a trap."""
    owner = folder.stat().st_uid
    if folder.parent.stat().st_mode & stat.S_ISVTX and owner not in (0, os.getuid()):
        raise PermissionError(f"{folder} belongs to user {owner}: choose another control.socket")


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + LOCK_SUFFIX)


def _try_lock(path: Path) -> None:
    """Raise FileExistsError where a daemon holds the lock, other OSErrors as they come."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, _LOCK_FLAGS)
        try:
            _flock(fd, fcntl.LOCK_SH, path)
        finally:
            os.close(fd)


def _flock(fd: int, how: int, path: Path) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        holder = f"another daemon (process {pid or 'unknown'})"
        raise FileExistsError(f"{holder} holds {path}; {_ANOTHER}") from None


def _bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        path.chmod(0o660)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket file that a dead daemon left. Raises OSError if it is anything else.

    No process without the lock should listen there. But a cleaner of old files may delete the
    lock's file while its daemon lives: so the socket is tried, too.
    """
    if _ask(path):
        path.unlink(missing_ok=True)


def _ask(path: Path) -> bool:
    """Whether a socket file lies there at which no process listens; False where nothing lies there.

    Raises FileExistsError if a process answers or it is no socket, other OSErrors as they come.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except FileNotFoundError:
            return False
    raise FileExistsError(f"another daemon answers at {path}; {_ANOTHER}")

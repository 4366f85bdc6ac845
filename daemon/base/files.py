"""Files: written whole or not at all, read whole unless too large; and the limit of open files."""

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

CONFIG_BYTES = 16 << 20
"""Largest file that people write."""
TABLE_BYTES = 64 << 20
"""Largest file that programs write, where it is read as a whole."""
LINE_CHARACTERS = 16 << 20
"""Longest line: a file without line ends is no text."""


def read_whole(path: Path, most_bytes: int = CONFIG_BYTES) -> bytes:
    """All bytes of a file. Raises OSError where there are more, as in a device without end."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
    return data


def lines_of(file: TextIO) -> Iterator[str]:
    """The lines of a text, with their ends. Raises OSError where a line is too long."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS:
            raise OSError(errno.EFBIG, "a line without an end", getattr(file, "name", None))
        yield line


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A path to write to that becomes `path` once all is written; on a failure nothing is left.

    It lies in the same folder and has the same suffix. A target that is no file, such as a pipe or
    /dev/stdout, is written directly. Raises OSError.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield path
        return
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        yield partial
        os.replace(partial, target)
    except OSError as error:
        # Name the requested path, not the partial one.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one go. Raises OSError."""
    with appearing(path) as partial:
        partial.write_bytes(data)


def check_place(path: Path) -> None:
    """Raise OSError where a file could not be written, before its content takes time to make."""
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        return  # written directly
    folder = target.parent
    if not folder.is_dir():
        missing = errno.ENOTDIR if folder.exists() else errno.ENOENT
        raise OSError(missing, os.strerror(missing), str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def raise_descriptor_limit() -> int:
    """Let this process open as many descriptors as it may; return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def copy_missing(source: Path, folder: Path, but: Container[str] = ()) -> None:
    """Copy the entries that `folder` lacks from `source`, if that exists, each whole or not at all.
    Links stay links; times and modes are the copy's. The names in `but` are skipped, and so is one
    that begins with a dot: it is a lock or a partial copy. Raises OSError.
    """
    for entry in source.iterdir() if source.is_dir() else ():
        target = folder / entry.name
        if entry.name.startswith(".") or entry.name in but or target.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if not entry.is_dir():
            write_whole(target, entry.read_bytes())
            continue
        half = Path(tempfile.mkdtemp(dir=folder, prefix=f".{entry.name}."))
        try:
            shutil.copytree(
                entry, half, symlinks=True, copy_function=shutil.copyfile, dirs_exist_ok=True
            )
            half.chmod(0o755)  # the installation copied from may be read-only
            half.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)

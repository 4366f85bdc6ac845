"""Files: written whole or not at all, read whole unless too large, open as many as may be."""

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

CONFIG_BYTES = 16 << 20
"""The most that a file which people write can have."""
TABLE_BYTES = 64 << 20
"""The most that a file which programs write can have, where it is read as a whole."""
LINE_CHARACTERS = 16 << 20
"""The most that a line can have: a file without line ends is no text."""


def read_whole(path: Path, most_bytes: int = CONFIG_BYTES) -> bytes:
    """All bytes of a file. Raises OSError, also where there are more: of a device without end."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
    return data


def lines_of(file: TextIO) -> Iterator[str]:
    """The lines of a text, with their ends. Raises OSError where one has no end in sight."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS:
            raise OSError(errno.EFBIG, "a line without an end", getattr(file, "name", None))
        yield line


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write what shall be `path` once all of it is written; else nothing is left.

    Of the same folder and the same suffix. What is there and is no file, such as a pipe or
    /dev/stdout, is written straight. Raises OSError.
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
        # Of the name that was asked for: nobody knows the other.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one go. Raises OSError."""
    with appearing(path) as partial:
        partial.write_bytes(data)


def raise_descriptor_limit() -> int:
    """Let this process open as many descriptors as it may; that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def copy_missing(source: Path, folder: Path) -> None:
    """Copy the entries of `source`, where there is such a folder, that `folder` lacks: each whole,
    or not at all. Links stay links; times and modes are those of the copy. What begins with a dot
    is a lock or a half, and stays. Raises OSError.
    """
    for entry in source.iterdir() if source.is_dir() else ():
        target = folder / entry.name
        if entry.name.startswith(".") or target.exists():
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
            half.chmod(0o755)  # of an installation that nobody may write to
            half.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)

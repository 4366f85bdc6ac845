"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one go. Raises OSError."""
    with appearing(path) as partial:
        partial.write_bytes(data)

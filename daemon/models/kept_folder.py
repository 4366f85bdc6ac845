"""Folders that are made once and kept in the cache: whole, or not there at all.

A lock keeps two starts apart, and a rename makes the result appear as a whole. What makes a folder
is a process of its own, so that torch never enters this one.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from daemon.models.gguf_index import LINK, read_index
from daemon.models.shape import ModelError
from daemon.models.weights import stored_bytes, weight_files

log = logging.getLogger(__name__)

Tell = Callable[[float], None]
"""A callback that gets the share of a folder that is made, 0..1."""


def is_converted(folder: Path) -> bool:
    """Whether a folder that was made is all there: a cache cleaner may take single files, and a
    machine that loses its power the ends of new ones.
    """
    try:
        index = read_index(folder)
        if index is None:
            return False
        texts = [folder / name for name in ("config.json", "tokenizer.json")]
        own = [] if index.file == LINK else [folder / index.file]
        return (
            all(text.stat().st_size for text in texts)
            and all(path.stat().st_size == index.size_bytes for path in own)
            and all(path.stat().st_size >= stored_bytes(path) for path in weight_files(folder))
        )
    except (OSError, ModelError):
        return False


def make_once(target: Path, make: Callable[[Path], None]) -> bool:
    """Have `make` fill a folder that becomes `target`, unless that is whole already; whether it was
    made now. Raises OSError and what `make` raises.
    """
    if is_converted(target):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.lock")):
        if is_converted(target):  # another start has made it meanwhile
            return False
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
        try:
            make(partial)
            if target.exists():
                log.warning("%s was not whole: it was converted again", target)
                shutil.rmtree(target)
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True


def run_maker(words: Sequence[str], tell: Tell) -> str:
    """Run a module of ours that prints the share done, a number per line. Returns why it failed,
    empty if it did not.
    """
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    command = [sys.executable, "-m", *words]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=said, text=True) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                with contextlib.suppress(ValueError):  # a library's own words
                    tell(float(line))
        except BaseException:
            child.kill()
            raise
        if not child.wait():
            return ""
        said.seek(0)
        last = said.read().strip().splitlines()[-1:]
        return last[0] if last else f"exit code {child.returncode}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock; the kernel gives it back if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

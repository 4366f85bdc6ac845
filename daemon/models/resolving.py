"""Asks a child process how transformers resolves a folder's configuration, and keeps the answer.

transformers may not be loaded here, so `daemon.engine.loading.resolve` reads the folder in a
process of its own (about a second). The answer is kept under the content of the files and
transformers' version: the next start only reads it.
"""

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from daemon.base.files import write_whole
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError

RESOLVER_VERSION = 11
"""Part of every kept answer's key: raise it when `Resolved` or what fills it changes."""

_CONFIGS = ("config.json", "generation_config.json")
_LIMIT_S = 120.0


Ask = Callable[[Path], Resolved]
"""How a folder's configuration is resolved; raises ModelError."""


class _Kept(msgspec.Struct, frozen=True):
    """An answer with what it answers."""

    key: str
    resolved: Resolved


class _Answer(msgspec.Struct, frozen=True):
    """The child process's answer: either field is set."""

    resolved: Resolved | None = None
    error: str = ""


def resolve(folder: Path, cache: Path, ask: Ask) -> Resolved:
    """The configuration of the model in `folder`, from the cache folder if it is known there.

    Where it is not, `ask` is asked, and what it says is kept. Raises ModelError.
    """
    key = _key(folder)
    path = cache / "configurations" / f"{key}.json"
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if kept.key == key:
            return kept.resolved
    resolved = ask(folder)
    with contextlib.suppress(OSError):  # where nothing can be kept the next start asks again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(_Kept(key, resolved)))
    return resolved


def answer(resolved: Resolved | None, error: str = "") -> bytes:
    """The line that the child process prints."""
    return msgspec.json.encode(_Answer(resolved, error))


def _key(folder: Path) -> str:
    """A key of the files that are read and of the code that reads them. Raises ModelError."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{RESOLVER_VERSION}:{version('transformers')}".encode())
    for name in _CONFIGS:
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise ModelError(f"{folder / name}: {error.strerror}") from None
        digest.update(f":{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def ask_child(folder: Path) -> Resolved:
    """Have a process of its own read the folder; blocks for about a second. Raises ModelError."""
    command = [sys.executable, "-m", "daemon.engine.loading.resolve", str(folder)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        found = msgspec.json.decode(done.stdout, type=_Answer)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{folder}: config.json was not read within {_LIMIT_S:g} s") from None
    except (msgspec.MsgspecError, ValueError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = last[0] if last else f"exit status {done.returncode}"
        raise ModelError(f"{folder}: config.json could not be read: {why}") from None
    if found.resolved is None:
        raise ModelError(found.error)
    return found.resolved

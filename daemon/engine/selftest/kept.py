"""Verdicts of earlier self-tests: a small file for each card, versions and model's shape."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from daemon.engine.selftest.subject import Subject

_ENGINE = Path(__file__).parents[1]
_TRIED = ("kernels", "cuda", "selftest")
"""Folders of the engine whose code a verdict holds for."""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU, and what drives it."""

    name: str
    capability: str  # "9.0"
    driver: str
    torch: str
    triton: str
    cuda: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a self-test came to."""

    card: Card
    subject: Subject
    code: str  # a digest
    faults: dict[str, str]  # family -> why torch computes it


def read(folder: Path, card: Card, subject: Subject) -> Verdict | None:
    """The verdict kept of an equal self-test; None where there is none that can be believed."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        verdict = msgspec.json.decode(_path(folder, card, subject).read_bytes(), type=Verdict)
        if (verdict.card, verdict.subject, verdict.code) == (card, subject, code()):
            return verdict
    return None


def keep(folder: Path, verdict: Verdict) -> None:
    """Whole or not at all; where nothing can be kept, the next start tries again."""
    path = _path(folder, verdict.card, verdict.subject)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(verdict)))
        partial.replace(path)


def all_kept(folder: Path) -> Iterator[tuple[Path, Verdict]]:
    """Every verdict of the code as it is now, and its file."""
    for path in sorted((folder / "kernels").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
            verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
            if verdict.code == code():
                yield path, verdict


def _path(folder: Path, card: Card, subject: Subject) -> Path:
    digest = hashlib.blake2b(digest_size=16)
    for part in (card, subject, code()):
        digest.update(msgspec.json.encode(part))
    return folder / "kernels" / f"{digest.hexdigest()}.json"


@cache
def code() -> str:
    """A digest of the kernels' sources, and of what calls and tries them."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _TRIED:
        for path in sorted((_ENGINE / name).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()

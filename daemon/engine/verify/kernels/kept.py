"""Verdicts of earlier self-tests: a small file for each card, versions and model's shape."""

import contextlib
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from daemon.base.files import write_whole
from daemon.engine.families import ALL
from daemon.engine.verify.kernels.subject import Subject

_ENGINE = Path(__file__).parents[2]


class CardStack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU, and what drives it."""

    name: str
    capability: str  # "9.0"
    driver: str
    torch: str
    triton: str
    cuda: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verdict of a self-test."""

    card: CardStack
    subject: Subject
    code: str  # a digest
    faults: dict[str, str]  # family -> why torch computes it


def read(folder: Path, card: CardStack, subject: Subject) -> Verdict | None:
    """The verdict kept of an equal self-test; None where there is none that can be believed."""
    verdict = _read(_path(folder, card, subject))
    if verdict and (verdict.card, verdict.subject) == (card, subject):
        return verdict
    return None


def keep(folder: Path, verdict: Verdict) -> None:
    """Write a verdict, whole or not at all; if it cannot be kept, the next start tries again."""
    path = _path(folder, verdict.card, verdict.subject)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(verdict)))


def all_kept(folder: Path) -> Iterator[tuple[Path, Verdict]]:
    """Every verdict of the code as it is now, and its file."""
    for path in sorted((folder / "kernels").glob("*.json")):
        if verdict := _read(path):
            yield path, verdict


def _read(path: Path) -> Verdict | None:
    """A file's verdict, if it is one of the code as it is now."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
        if verdict.code == code() and ALL.issuperset(verdict.faults):
            return verdict
    return None


def _path(folder: Path, card: CardStack, subject: Subject) -> Path:
    digest = hashlib.blake2b(digest_size=16)
    for part in (card, subject, code()):
        digest.update(msgspec.json.encode(part))
    return folder / "kernels" / f"{digest.hexdigest()}.json"


@cache
def code() -> str:
    """A digest of the engine's sources: of the kernels, what calls and tries them, and what lays
    out all that they read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_ENGINE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def version_of(name: str) -> str:
    """The installed version of a library; empty where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

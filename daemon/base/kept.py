"""Results of earlier starts: a small file for each, under a key of all that it may depend on."""

import contextlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from daemon.base.files import write_whole

Result = TypeVar("Result")


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A result and its key."""

    key: str
    result: msgspec.Raw


class KeptResults(Generic[Result]):
    """The results of one type in a folder."""

    def __init__(self, folder: Path, kind: type[Result]) -> None:
        self._folder = folder
        self._kind = kind

    def read(self, key: str) -> Result | None:
        """The result kept under a key; None where there is none that can be believed."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
            kept = msgspec.json.decode(self._path(key).read_bytes(), type=_Kept)
            if kept.key == key:
                return msgspec.json.decode(kept.result, type=self._kind)
        return None

    def keep(self, key: str, result: Result) -> None:
        """Write a result, whole or not at all; if it cannot be kept, it is found anew next time."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = _Kept(key, msgspec.Raw(msgspec.json.encode(result)))
            write_whole(path, msgspec.json.encode(whole))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

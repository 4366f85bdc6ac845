"""The folder of numba's compiled code of this package, named by the content of the files.

The columns and the noise that they take from elsewhere count too. numba's own choice carries the
path of the source: each checkout would compile anew, and a change in a file that another one takes
functions from would go unseen.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Self

_SAMPLER = Path(__file__).parent.parent / "sampler"
_ELSEWHERE = [_SAMPLER / name for name in ("sample_columns.py", "noise.py")]


class ByContent:
    """A cache locator, as numba wants one of each function: `NUMBA_CACHE_LOCATOR_CLASSES`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> Self:
        """The locator of a function of this package."""
        return cls(function)

    def get_cache_path(self) -> str:
        """The folder of what is compiled."""
        return str(_root() / f"cpu-{_content()}")

    def ensure_cache_path(self) -> None:
        """Raise OSError unless the folder is there and can be written."""
        os.makedirs(self.get_cache_path(), exist_ok=True)
        tempfile.TemporaryFile(dir=self.get_cache_path()).close()

    def get_source_stamp(self) -> str:
        """A stamp that changes with the source."""
        return _content()

    def get_disambiguator(self) -> str:
        """A key that tells functions of the same name apart."""
        return str(self._line)


@cache
def _root() -> Path:
    """The folder for compiled code, as configured when the process compiled first."""
    return Path(os.environ["NUMBA_CACHE_DIR"])


@cache
def _content() -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in (*_ELSEWHERE, *sorted(Path(__file__).parent.glob("*.py"))):
        source = path.read_bytes()
        digest.update(f"{path.name}:{len(source)}:".encode() + source)
    return digest.hexdigest()

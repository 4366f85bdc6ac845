"""Triton's interpreter, made to rename triton.language's functions once a launch.

By itself it does so at every call of a device function too, which is two fifths of an interpreted
program's time.
"""

from types import FunctionType
from typing import Any


class _Launch:
    """What a launch has renamed."""

    def __init__(self, scope: Any, renamed: set[int]) -> None:
        self._scope = scope
        self._renamed = renamed

    def restore(self) -> None:
        """The launch is over: all names are as before."""
        self._renamed.clear()
        self._scope.restore()


class RenameOnce:
    """Renames what a function sees, where no function of its module has had it renamed before."""

    def __init__(self, rename: Any) -> None:
        self._rename = rename
        self._renamed: set[int] = set()  # the modules of the functions of this launch

    def __call__(self, function: FunctionType) -> _Launch | None:
        """A launch calls this first, and restores; then its device functions do."""
        module, begins = id(function.__globals__), not self._renamed
        if module in self._renamed:
            return None
        self._renamed.add(module)
        scope = self._rename(function)
        return _Launch(scope, self._renamed) if begins else None


def patch_once() -> None:
    """Change the interpreter of this process; Triton must have been imported as an interpreter."""
    from triton.runtime import interpreter

    interpreter._patch_lang = RenameOnce(interpreter._patch_lang)

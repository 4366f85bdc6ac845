"""Parts of torch that transformers imports and llmd never uses, left out of a worker.

They are its compiler, and tensors that are spread over processes. Together they take more than a
second to import, and some 70 MB of every worker, spare ones too (docs/measurements.md, "Imports of
a worker").
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


def leave_out() -> None:
    """Have transformers import neither; call before it is imported. Twice is as good as once."""
    import torch

    # What torch says where it was built without them; workers have links of their own.
    torch.distributed.is_available = lambda: False
    if _COMPILER in sys.modules:
        return
    spec = PathFinder.find_spec(_COMPILER, torch.__path__)
    if spec is not None and spec.submodule_search_locations is not None:
        shell = _Shell(_COMPILER)
        shell.__spec__ = spec
        shell.__path__ = list(spec.submodule_search_locations)
        sys.modules[_COMPILER] = torch._dynamo = shell


def _unchanged(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    """A mark for the compiler, where nothing is compiled."""
    return function


def _disable(
    function: Callable[..., Any] | None = None, *_: object, **__: object
) -> Callable[..., Any]:
    """The same, with or without arguments of its own."""
    return _unchanged if function is None else function


class _Shell(ModuleType):
    """torch's compiler, as far as functions are marked for it; whatever else is asked of it imports
    the real one, which takes its place.
    """

    disable = staticmethod(_disable)
    allow_in_graph = staticmethod(_unchanged)
    assume_constant_result = staticmethod(_unchanged)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)

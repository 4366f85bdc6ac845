"""Trials of families, one after another, on the device itself, in a process that may die."""

from collections.abc import Callable
from importlib import import_module
from subprocess import SubprocessError
from typing import Any

import torch

from daemon.engine.families import (
    ACTIVATION,
    BLOCKS,
    CAPTURED,
    DECODE,
    DRAW,
    EDIT,
    EXPERTS,
    GRAPHS,
    MOVE,
    NORM,
    PACK,
    PREFILL,
    PRODUCTS,
    QKV,
    STATES,
    WRITE,
)
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError
from daemon.engine.verify.kernels.messages import Message, Request, Tried, Trying, Untried

_CASES = {
    NORM: "small_cases.try_norms",
    ACTIVATION: "small_cases.try_activations",
    QKV: "small_cases.try_qkv",
    WRITE: "small_cases.try_writes",
    DECODE: "attention_cases.try_decode",
    PREFILL: "attention_cases.try_prefill",
    PRODUCTS: "product_cases.try_products",
    BLOCKS: "block_cases.try_blocks",
    EXPERTS: "expert_cases.try_experts",
    DRAW: "sampling_cases.try_draws",
    EDIT: "sampling_cases.try_edits",
    PACK: "row_cases.try_packing",
    MOVE: "row_cases.try_moves",
    STATES: "state_cases.try_states",
}
_LACKING = (torch.OutOfMemoryError, MemoryError, OSError, SubprocessError)
_LACKS = ("out of memory", "STATUS_ALLOC_FAILED", "Failed to find C compiler")
"""Words of errors that have no type of their own: the driver's, cuBLAS', Triton's."""
_LONGEST_FAULT = 300
"""Characters of a fault: a compiler's own message fills pages."""


def try_all(request: Request, tell: Callable[[Message], None]) -> None:
    """Try each family that is asked for, as long as the device answers.

    A CUDA context that saw an illegal access answers every later call with it: nothing is tried
    after that.
    """
    device, by_torch = torch.device(request.subject.device), set(request.by_torch)
    try:
        _open(device)
    except Exception as error:  # noqa: BLE001 - without a device there is nothing to try
        tell(Untried(f"{device} cannot be opened: {_in_a_line(error)}"))
        return
    with torch.inference_mode():
        for family in request.families:
            tell(Trying(family))
            ended = _tried(family, request, frozenset(by_torch))
            tell(ended)
            if ended.fault:
                by_torch.add(family)
                if not _answers(device):
                    return


def _open(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)


def _tried(family: str, request: Request, by_torch: frozenset[str]) -> Tried:
    bench = Bench(request.subject)
    try:
        _try(family, bench, by_torch)
        if bench.device.type == "cuda":
            torch.cuda.synchronize(bench.device)
    except WrongError as error:
        return Tried(family, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, torch computes the family
        return Tried(family, _in_a_line(error), passing=_passes(error))
    return Tried(family)


def _passes(error: Exception) -> bool:
    """Whether an error says nothing of the card: what lacks may be there at the next start, as
    memory, room on a disk for what is compiled, or a C compiler with Python's headers.
    """
    return isinstance(error, _LACKING) or any(words in str(error) for words in _LACKS)


def _try(family: str, bench: Bench, by_torch: frozenset[str]) -> None:
    """Raises WrongError, or whatever the family raises."""
    if family == GRAPHS:
        if lacking := sorted(by_torch & CAPTURED):
            raise WrongError(f"torch computes {', '.join(lacking)}, which no graph can hold")
        from daemon.engine.verify.kernels.graph_cases import try_graphs

        try_graphs(bench, by_torch)
        return
    # Imported when it is tried: Triton compiles some of a kernel's surroundings at once.
    module, _, name = _CASES[family].partition(".")
    work: Any = getattr(import_module(f"daemon.engine.verify.kernels.{module}"), name)
    work(bench)


def _answers(device: torch.device) -> bool:
    """Whether a device computes after a fault."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
    return True


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST_FAULT]

"""The functions that transformers' recurrent layers call, replaced while a step is computed.

Modelling code of transformers computes what is special about a recurrent layer in a few functions
of its module; projections, gates and norms around them are its own. Within `recurring` these
functions go to a `Recurrence`, with the layer that calls them; elsewhere they are what they were.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from daemon.engine.layers.recurrent.chunk_scan import time_steps
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Recurrence, Scan
from daemon.models.formats import PLAIN

_recurrence: ContextVar[Recurrence | None] = ContextVar("recurrence", default=None)
_layer: ContextVar[int] = ContextVar("layer")

_READ_OUTSIDE = "dt_proj"
"""The layer of Mamba 1 whose weight its code multiplies with itself."""

Replacement = Callable[..., Any]


@contextmanager
def recurring(recurrence: Recurrence) -> Iterator[None]:
    """Within, modelling code computes its recurrent layers through `recurrence`."""
    token = _recurrence.set(recurrence)
    try:
        yield
    finally:
        _recurrence.reset(token)


def current_recurrence() -> Recurrence:
    """The recurrence of the step that is computed."""
    recurrence = _recurrence.get()
    assert recurrence is not None, "a step of a model with states has a recurrence"
    return recurrence


class DirectLinear(nn.Linear):
    """A layer whose weight the module around it multiplies with itself: neither packed nor in
    blocks, whatever its file holds.
    """

    held_as: torch.dtype  # the type to which its file's numbers were rounded


def replace_functions(model: nn.Module) -> None:
    """Have a model's recurrent layers ask for a recurrence, wherever there is one."""
    for module in list(model.modules()):
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and _convolutions(module):
            module.register_forward_pre_hook(partial(_begin_layer, layer))
            if (direct := getattr(module, _READ_OUTSIDE, None)) is not None:
                setattr(
                    module, _READ_OUTSIDE, _direct(direct, _convolutions(module)[0].weight.dtype)
                )
            code = sys.modules[type(module).__module__]
            for name, replacement in _REPLACED.items():
                if hasattr(code, name):
                    setattr(code, name, _either(getattr(code, name), replacement))


def _convolutions(module: nn.Module) -> list[nn.Conv1d]:
    return [child for child in module.children() if isinstance(child, nn.Conv1d)]


def _direct(layer: Any, dtype: torch.dtype) -> DirectLinear:
    """A layer's twin with the numbers of its weight."""
    weight = layer.weight.to(dtype)
    direct = DirectLinear(*weight.T.shape, bias=False, device="meta")
    direct.weight = nn.Parameter(weight, requires_grad=False)
    direct.bias = layer.bias
    forms = [PLAIN.get(held.format.name) for held in getattr(layer, "weights", ())]
    direct.held_as = getattr(torch, forms[0]) if forms and forms[0] else dtype
    return direct


def _begin_layer(layer: int, _module: Any, _inputs: Any) -> None:
    _layer.set(layer)


def _either(theirs: Callable[..., Any], ours: Replacement) -> Callable[..., Any]:
    """A function of transformers', or ours where there is a recurrence."""
    if getattr(theirs, "is_replaced", False):
        return theirs

    @wraps(theirs)
    def function(*arguments: Any, **named: Any) -> Any:
        recurrence = _recurrence.get()
        if recurrence is None:
            return theirs(*arguments, **named)
        return ours(recurrence, *arguments, **named)

    function.is_replaced = True  # type: ignore[attr-defined]
    return function


def _convolve(
    recurrence: Recurrence,
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_ignored: Any,
) -> torch.Tensor:
    """[1, C, T] in and out."""
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"its convolutions are activated by {activation}")
    convolution = Convolution(hidden_states[0].T, weight, bias, activation is not None)
    return recurrence.convolve(_layer.get(), convolution).T.unsqueeze(0)


def _delta_rule(
    recurrence: Recurrence,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_ignored: Any,
) -> tuple[torch.Tensor, None]:
    """[1, T, heads, dim] in and out."""
    if not use_qk_l2norm_in_kernel:
        raise ValueError("its queries and keys are no unit vectors")
    rule = DeltaRule(query[0], key[0], value[0], g[0], beta[0])
    return recurrence.delta_rule(_layer.get(), rule).unsqueeze(0), None


def _chunk_scan(
    recurrence: Recurrence,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    chunk_size: int = 0,
    D: torch.Tensor | None = None,  # noqa: N803
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, torch.inf),
    **_ignored: Any,
) -> torch.Tensor:
    """[1, T, H, P] in and out. Results do not depend on `chunk_size`."""
    steps = time_steps(dt[0], dt_bias, dt_softplus, dt_limit)
    scan = Scan(hidden_states[0], steps, rates=A, write=B[0], read=C[0], direct=D)
    output = recurrence.chunk_scan(_layer.get(), scan).unsqueeze(0)
    return output if z is None else output * silu(z)


def _selective_scan(
    recurrence: Recurrence,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None = None,  # noqa: N803
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    **_ignored: Any,
) -> torch.Tensor:
    """[1, C, T] in and out."""
    steps = time_steps(dt[0].T, delta_bias, delta_softplus)
    scan = Scan(hidden_states[0].T, steps, rates=A, write=B[0].T, read=C[0].T, direct=D)
    output = recurrence.selective_scan(_layer.get(), scan).T.unsqueeze(0)
    return output if z is None else output * silu(z)


_REPLACED: dict[str, Replacement] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba_selective_scan": _selective_scan,
}
"""transformers' functions by name, and what computes them in a step."""

"""The numbers that a GGUF file's writer moved or changed, by a weight's name, and the way back.

Rows and columns that only changed places stay in the file, and are taken in the model's order. What
has other numbers, or another shape, is computed when the file is seen first: norms that grew by 1,
decays that are stored as such and not as logarithms, convolutions without their middle side.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from daemon.models.gguf_index import SideSwap, file_order


class Undo(NamedTuple):
    """The way from a file's tensor to the model's."""

    rows: tuple[SideSwap, ...] = ()
    columns: tuple[SideSwap, ...] = ()
    numbers: Callable[[torch.Tensor], torch.Tensor] | None = None
    reshapes: bool = False  # the model has as many numbers in another shape

    @property
    def computes(self) -> bool:
        """Whether the model's numbers do not lie in the file as they are."""
        return self.numbers is not None or self.reshapes

    def __call__(self, numbers: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The model's numbers, of this `shape`. Raises RuntimeError where they are not as many."""
        if self.rows:
            numbers = numbers[torch.from_numpy(file_order(self.rows))]
        if self.columns:
            numbers = numbers[:, torch.from_numpy(file_order(self.columns))]
        if self.numbers is not None:
            numbers = self.numbers(numbers)
        return numbers.reshape(shape if self.reshapes else numbers.shape).contiguous()


NOTHING = Undo()


def undo(architecture: str, config: Any, name: str) -> Undo:
    """The way back for the weight `name` of a model with this configuration."""
    for pattern, way in _WAYS.get(architecture, ()):
        if pattern.search(name):
            made = way(config)
            return made._replace(rows=_needed(made.rows), columns=_needed(made.columns))
    return NOTHING


def _needed(swaps: tuple[SideSwap, ...]) -> tuple[SideSwap, ...]:
    """The swaps, if any of them changes a place."""
    return swaps if any(min(swap.outer, swap.inner) > 1 for swap in swaps) else ()


def _logarithms(decays: torch.Tensor) -> torch.Tensor:
    return torch.log(-decays)


def _smaller_by_1(weights: torch.Tensor) -> torch.Tensor:
    return weights - 1


def _values(config: Any, size: int | None = None) -> SideSwap:
    """Heads of values of a delta net, `size` rows each: those that share a head of keys are
    neighbours in the model, and those of the same number in a file.
    """
    heads, shared_by = config.linear_num_key_heads, config.linear_num_value_heads
    return SideSwap(1, shared_by // heads, heads, size or config.linear_value_head_dim)


def _queries_and_keys(config: Any) -> SideSwap:
    return SideSwap(1, 1, 1, 2 * config.linear_num_key_heads * config.linear_key_head_dim)


Way = Callable[[Any], Undo]
Ways = tuple[tuple[re.Pattern[str], Way], ...]
_DECAYS = re.compile(r"\.A_log$")
_CONVOLUTION = re.compile(r"\.conv1d\.weight$")
_RESHAPED: Way = lambda _: Undo(reshapes=True)  # noqa: E731
_OF_QWEN: Ways = (
    (re.compile(r"(?<!linear_attn\.)norm\.weight$"), lambda _: Undo(numbers=_smaller_by_1)),
    (re.compile(r"shared_expert_gate\.weight$"), _RESHAPED),
)
_OF_MAMBA: Ways = (
    (_DECAYS, lambda _: Undo(numbers=_logarithms, reshapes=True)),
    (re.compile(r"\.D$|\.(mamba|mixer)\.norm\.weight$"), _RESHAPED),
    (_CONVOLUTION, _RESHAPED),
)
_OF_MOVED_VALUES: Ways = (
    (
        re.compile(r"\.in_proj_qkv\.weight$"),
        lambda config: Undo(rows=(_queries_and_keys(config), _values(config))),
    ),
    (
        _CONVOLUTION,
        lambda config: Undo(rows=(_queries_and_keys(config), _values(config)), reshapes=True),
    ),
    (re.compile(r"\.in_proj_z\.weight$"), lambda config: Undo(rows=(_values(config),))),
    (
        re.compile(r"\.in_proj_[ab]\.weight$|\.dt_bias$"),
        lambda config: Undo(rows=(_values(config, 1),)),
    ),
    (_DECAYS, lambda config: Undo(rows=(_values(config, 1),), numbers=_logarithms)),
    (re.compile(r"\.out_proj\.weight$"), lambda config: Undo(columns=(_values(config),))),
)
_OF_KIMI: Ways = ((_DECAYS, lambda _: Undo(numbers=_logarithms, reshapes=True)),)
_SHORT: Ways = ((re.compile(r"\.conv\.conv\.weight$"), _RESHAPED),)
_WAYS: dict[str, Ways] = {
    **dict.fromkeys(("falcon-h1", "jamba", "mamba", "mamba2"), _OF_MAMBA),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _OF_MAMBA),
    **dict.fromkeys(("lfm2", "lfm2moe"), _SHORT),
    "granitehybrid": _OF_MAMBA,
    "kimi-linear": _OF_KIMI,
    "qwen35": _OF_QWEN + _OF_MOVED_VALUES,
    "qwen35moe": _OF_QWEN + _OF_MOVED_VALUES,
    "qwen3next": _OF_QWEN + _OF_MAMBA,
}
"""By an architecture: patterns of weights' names, of which the first that fits counts, and their
ways."""

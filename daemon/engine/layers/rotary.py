"""The angles of rotary positions, computed once for every position that is served."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from daemon.engine.layers.ops import Angles

_GROWING = ("dynamic", "longrope")
_SETTLED = "settled"
"""A kind whose frequencies transformers leaves as they are."""


def settle_rotary(model: nn.Module, max_len: int) -> None:
    """Keep rotary frequencies that depend on a sequence's length as those of `max_len` tokens.

    transformers chooses them anew in each forward pass, by the longest sequence in it: then a
    sequence's keys would be turned by one set and its queries, later, by another.
    """
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and _grows(kinds):
            _choose(module, max_len)
            module.rope_type = _SETTLED
        elif isinstance(kinds, dict) and any(map(_grows, kinds.values())):
            for layer_type in (name for name, kind in kinds.items() if _grows(kind)):
                _choose(module, max_len, layer_type)
            module.rope_type = {
                name: _SETTLED if _grows(kind) else kind for name, kind in kinds.items()
            }


def _grows(kind: str) -> bool:
    return any(name in kind for name in _GROWING)


def _choose(module: nn.Module, max_len: int, *layer_type: str) -> None:
    """Have transformers choose the frequencies of a sequence of `max_len` tokens."""
    device = next(module.buffers()).device
    last = torch.tensor([[max_len - 1]], device=device)
    module(torch.empty(0, device=device), last, *layer_type)


class RotaryTable:
    """Cosine and sine float32 [position, rotary_dim], as transformers' own module makes them."""

    def __init__(
        self,
        rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        num_positions: int,
        device: torch.device,
    ) -> None:
        positions = torch.arange(num_positions, device=device).unsqueeze(0)
        # The module rounds to the type of the states that it is given.
        like = torch.empty(0, dtype=torch.float32, device=device)
        cos, sin = (part[0] for part in rotary(like, positions))
        half = cos.shape[-1] // 2
        if not torch.equal(sin[:, :half], sin[:, half:]):  # of one half of a head alone
            cos, sin = (torch.cat((part, part), -1) for part in (cos, sin))
        self._cos, self._sin = cos.contiguous(), sin.contiguous()

    @property
    def tables(self) -> Angles:
        """The angles of every position."""
        return self._cos, self._sin

    def angles(self, positions: torch.Tensor) -> Angles:
        """Angles of tokens at `positions` int64 [T]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def fill(self, angles: Angles, positions: torch.Tensor) -> None:
        """Overwrite `angles` with those of tokens at `positions` int64 [T]."""
        for table, part in zip((self._cos, self._sin), angles, strict=True):
            torch.index_select(table, 0, positions, out=part)

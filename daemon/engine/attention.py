"""Our paged attention in transformers' attention interface.

transformers' modelling code calls `paged_attention` where it would call sdpa. No mask function is
registered under the same name, so transformers builds no mask: the flattened row of tokens is
many sequences, and which token sees which is known from the batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from daemon.models.shape import ModelError

ATTENTION_NAME = "llmd_paged"

_BEYOND = {
    "attention_mask": "its attention has a mask of its own",
    "s_aux": "its attention has sinks",
    "softcap": "it caps attention scores",
    "position_bias": "its attention has a bias by position",
    "indexer_scores": "its attention chooses among tokens",
}
"""What modelling code may ask of attention that ours does not compute, by argument."""


class PagedAttention(Protocol):
    """One step's attention: writes keys and values to the pool, then attends through it."""

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """`query` [T, heads, head_dim], `key` and `value` [T, kv_heads, head_dim].

        Returns [T, heads, head_dim].
        """
        ...


_current: ContextVar[PagedAttention] = ContextVar("paged")


@contextmanager
def attending(paged: PagedAttention) -> Iterator[None]:
    """Within, modelling code attends through `paged`.

    It is not handed through the modelling code's own arguments: not all of it passes on what it
    does not know.
    """
    token = _current.set(paged)
    try:
        yield
    finally:
        _current.reset(token)


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out.

    Raises ModelError where more is asked than plain causal attention.
    """
    asked["attention_mask"] = attention_mask
    for name, reason in _BEYOND.items():
        if asked.get(name) is not None:
            raise ModelError(f"{type(module).__name__} is not supported yet: {reason}")
    if not getattr(module, "is_causal", True):
        reason = "a token attends to those after it (an encoder's way)"
        raise ModelError(f"{type(module).__name__} is not supported yet: {reason}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    paged = _current.get()
    return paged(module.layer_idx, query, key, value, scale).unsqueeze(0), None


def register() -> None:
    """Make `ATTENTION_NAME` known to transformers."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)

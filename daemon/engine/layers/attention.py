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

ATTENTION_NAME = "llmd_paged"


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
    **_ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    paged = _current.get()
    return paged(module.layer_idx, query, key, value, scale).unsqueeze(0), None


def register() -> None:
    """Make `ATTENTION_NAME` known to transformers."""
    # Not before: attention alone does without transformers.
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)

"""Latent attention (MLA): one row for each token, of which all heads' keys and values are made.

A row has `rank` numbers and `turned` ones. A head's key is a product of the first, followed by the
turned ones; its value is another product of the first. Two ways give the same attention:

    expanded    keys and values are made of the rows, and attended to as in any layer
    absorbed    a query takes its head's key product in, and attends to the rows themselves;
                what it gets, a mean of rows, goes through the value product

For each query and row absorbing computes 2 * rank + turned numbers of a head, expanding
key_dim + value_dim, and for each row rank * (own + value_dim) more. So few queries absorb, and
those of long chunks expand.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

EXPANDED_NUMBERS = 1 << 26
"""Numbers of keys and values that are expanded at a time, of a few heads."""

Stored = Callable[[torch.Tensor], torch.Tensor]
"""Rows [..., rank + turned] as a cache gives them back."""


class LatentProjection(nn.Module):
    """The products from a token's latent numbers to all heads' keys and values.

    transformers' `kv_b_proj`, unpacked where its weights are in blocks: it is multiplied by its
    columns and by its rows.
    """

    def __init__(self, weight: nn.Parameter, num_heads: int, value_dim: int, turned: int) -> None:
        """`weight` [heads * (own + value_dim), rank]; a head's key is `own` + `turned` wide."""
        super().__init__()
        self.weight = weight
        self.num_heads, self.value_dim, self.turned = num_heads, value_dim, turned
        self.rank = weight.shape[1]
        self.own = weight.shape[0] // num_heads - value_dim

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.rank + self.turned

    @property
    def key_dim(self) -> int:
        """Numbers of a head's key."""
        return self.own + self.turned

    @property
    def keys(self) -> torch.Tensor:
        """[heads, own, rank], a view."""
        return self.weight.unflatten(0, (self.num_heads, -1))[:, : self.own]

    @property
    def values(self) -> torch.Tensor:
        """[heads, value_dim, rank], a view."""
        return self.weight.unflatten(0, (self.num_heads, -1))[:, self.own :]

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """Keys, without their turned numbers, and values [..., heads * (own + value_dim)]."""
        return linear(latent, self.weight.to(latent.dtype))

    def expands(self, num_queries: int) -> bool:
        """Whether keys and values are expanded for so many queries of a sequence."""
        saved = 2 * self.rank + self.turned - self.key_dim - self.value_dim
        return num_queries * saved > self.rank * (self.own + self.value_dim)

    def heads_at_once(self, num_rows: int) -> Iterator[slice]:
        """Heads whose keys and values of so many rows are expanded together."""
        of_head = num_rows * (self.key_dim + self.value_dim)
        some = max(1, EXPANDED_NUMBERS // max(of_head, 1))
        for first in range(0, self.num_heads, some):
            yield slice(first, min(first + some, self.num_heads))

    def expanded(self, rows: torch.Tensor, heads: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, heads, key_dim] and values [n, heads, value_dim] of `rows` [n, width]."""
        latent, turned = rows.split((self.rank, self.turned), -1)
        weight = self.weight.unflatten(0, (self.num_heads, -1))[heads].to(rows.dtype)
        both = linear(latent, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])
        own, values = both.split((self.own, self.value_dim), -1)
        shared = turned.unsqueeze(1).expand(-1, len(weight), -1)
        return torch.cat((own, shared), -1), values

    def absorbed(self, query: torch.Tensor) -> torch.Tensor:
        """Queries [T, heads, width] to rows, of `query` [T, heads, key_dim] to keys."""
        own, turned = query.split((self.own, self.turned), -1)
        to_rows = torch.bmm(own.transpose(0, 1), self.keys.to(query.dtype)).transpose(0, 1)
        return torch.cat((to_rows, turned), -1)

    def emitted(self, attended: torch.Tensor) -> torch.Tensor:
        """Means of values [T, heads, value_dim], of `attended` means of rows [T, heads, rank]."""
        weight = self.values.to(attended.dtype).transpose(1, 2)
        return torch.bmm(attended.transpose(0, 1), weight).transpose(0, 1)


_stored: ContextVar[Stored | None] = ContextVar("stored", default=None)


@contextmanager
def stored_rows(stored: Stored) -> Iterator[None]:
    """Within, transformers' own attention makes keys and values of rows that a cache gave back."""
    token = _stored.set(stored)
    try:
        yield
    finally:
        _stored.reset(token)


def projection_of(attention: Any) -> LatentProjection | None:
    """The projection of a module of attention whose rows are kept; None: it has keys and values."""
    found = getattr(attention, "kv_b_proj", None)
    return found if isinstance(found, LatentProjection) else None


def keep_rows(model: nn.Module, dtype: torch.dtype, by_rows: Collection[str]) -> None:
    """Have a loaded model's latent attention give rows to its attention functions named `by_rows`,
    in place of the keys and values that it would make of them; others get these as before.

    Projections in blocks are unpacked to `dtype`.
    """
    for module in list(model.modules()):
        if _is_latent(module):
            attention: Any = module
            attention.kv_b_proj = _projection(attention, dtype)
            attention.expand_kv = partial(_given, attention, attention.expand_kv, by_rows)


def _is_latent(module: Any) -> bool:
    """Whether a module is attention as DeepSeek's, with transformers' own step from rows to keys
    and values.
    """
    inner = getattr(module, "kv_b_proj", None)
    return (
        callable(getattr(module, "expand_kv", None))
        and isinstance(inner, nn.Module)
        and not isinstance(inner, LatentProjection)
        and getattr(inner, "bias", None) is None
    )


def _projection(attention: Any, dtype: torch.dtype) -> LatentProjection:
    weight = attention.kv_b_proj.weight
    if not isinstance(weight, nn.Parameter):
        weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    sizes = attention.num_heads, attention.v_head_dim, attention.qk_rope_head_dim
    return LatentProjection(weight, *sizes)


def _given(
    attention: Any,
    expand: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    by_rows: Collection[str],
    latent: torch.Tensor,
    turned: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values for an attention function, of `latent` [1, 1, T, rank] and `turned`."""
    if attention.config._attn_implementation in by_rows:
        return torch.cat((latent, turned), -1), latent
    stored = _stored.get()
    if stored is not None:
        sizes = latent.shape[-1], turned.shape[-1]
        latent, turned = stored(torch.cat((latent, turned), -1)).split(sizes, -1)
    return expand(latent, turned)

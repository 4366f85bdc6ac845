"""Our paged attention in transformers' attention interface.

transformers' modelling code calls `paged_attention` where it would call sdpa. No mask function is
registered under the same name, so transformers builds no mask: the flattened row of tokens is
many sequences, and which token sees which is known from the batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from daemon.engine.layers.latent import LatentProjection, projection_of

ATTENTION_NAME = "llmd_paged"
LISTENING_NAME = "llmd_listening"
"""Attention that only notes what it is asked for."""
BY_ROWS = frozenset({ATTENTION_NAME, LISTENING_NAME})
"""Attention that takes latent rows in place of keys."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionVariant:
    """A layer's deviations from plain scores of all keys before a query."""

    window: int = 0  # tokens that a query sees, itself included; 0: all before it
    cap: float = 0.0  # a score becomes cap * tanh(score / cap), after scaling; 0: it stays
    sinks: torch.Tensor | None = None  # [heads] a score more in each softmax, without a value
    shared: bool = False  # keys and values are another layer's, which has written them
    latent: LatentProjection | None = None  # makes them of the rows that are given as keys

    @property
    def weighs_anew(self) -> bool:
        """Whether weights are others than the softmax of the scores."""
        return bool(self.cap) or self.sinks is not None

    def of_heads(self, heads: slice) -> "AttentionVariant":
        """The same for some of the query heads."""
        return self if self.sinks is None else replace(self, sinks=self.sinks[heads])

    def first_key(self, position: int) -> int:
        """The first position that the query at `position` sees."""
        return max(0, position + 1 - self.window) if self.window else 0


FULL = AttentionVariant()
"""Attention to all tokens before, as in Llama."""


class PagedAttention(Protocol):
    """One step's attention: writes keys and values to the pool, then attends through it."""

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """`query` [T, heads, head_dim], `key` and `value` [T, kv_heads, head_dim].

        Returns [T, heads, head_dim]. Of a latent variant `query` [T, heads, key_dim], `key` the
        rows [T, 1, width], and values are not read; returns [T, heads, value_dim].
        """


class GroupedAttention:
    """One step's attention where layers have blocks by groups."""

    def __init__(
        self,
        groups: Sequence[PagedAttention],
        places: Mapping[int, Sequence[tuple[int, int]]],
        shared: Collection[int] = (),
    ) -> None:
        """`places` of each layer: a group, and its number there; of several, each has an equal
        part of its heads. `shared`: the layers whose places are another's.
        """
        self._groups = groups
        self._places = places
        self._shared = shared

    def place(self, layer: int) -> tuple[PagedAttention, int] | None:
        """The attention of a layer's group, and the layer's number there; None where it has parts
        of its heads in several, or another layer's keys and values.
        """
        if layer in self._shared or len(self._places[layer]) > 1:
            return None
        group, number = self._places[layer][0]
        return self._groups[group], number

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """See `PagedAttention`."""
        places = self._places[layer]
        if layer in self._shared:
            variant = replace(variant, shared=True)
        if len(places) == 1:
            group, number = places[0]
            return self._groups[group](number, query, key, value, scale, variant)
        each, each_kv = query.shape[1] // len(places), key.shape[1] // len(places)
        attended = []
        for part, (group, number) in enumerate(places):
            heads = slice(part * each, (part + 1) * each)
            own = slice(part * each_kv, (part + 1) * each_kv)
            states = query[:, heads], key[:, own], value[:, own]
            paged = self._groups[group]
            attended.append(paged(number, *states, scale, variant.of_heads(heads)))
        return torch.cat(attended, 1)


_current: ContextVar[tuple[PagedAttention, tuple[int, ...]]] = ContextVar("paged")


@contextmanager
def attending(paged: PagedAttention, windows: tuple[int, ...] = ()) -> Iterator[None]:
    """Within, modelling code attends through `paged`, with the `windows` of each layer.

    They are not handed through the modelling code's own arguments: not all of it passes on what it
    does not know.
    """
    token = _current.set((paged, windows))
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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out.

    `softcap` and `s_aux` are transformers' names for a variant's cap and sinks. What it says of
    windows is not asked: its masks decide, and not all of it hands them on.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    paged, windows = _current.get()
    variant, latent = FULL, projection_of(module)
    if windows or softcap or s_aux is not None or latent is not None:
        window = windows[module.layer_idx] if windows else 0
        sinks = None if s_aux is None else s_aux.to(query.dtype)
        variant = AttentionVariant(window, softcap or 0.0, sinks, latent=latent)
    return paged(module.layer_idx, query, key, value, scale, variant).unsqueeze(0), None


def register() -> None:
    """Make `ATTENTION_NAME` known to transformers."""
    # Not before: attention alone does without transformers.
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)

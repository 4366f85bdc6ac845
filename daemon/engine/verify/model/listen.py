"""The attention, and the recurrent layers, that a model asks for, found by a short forward pass.

Paged attention computes what `AttentionVariant` says. Windows are read off transformers' own masks,
layer by layer, whatever the modelling code hands to attention besides. A model that asks for
anything else, not once in each layer, or with other heads than the cache was made for, is refused
by what it asks. So is one whose recurrent layers keep other states than the cache has room for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from daemon.base.logs import in_a_line
from daemon.engine.layers.attention import LISTENING_NAME
from daemon.engine.layers.latent import projection_of
from daemon.engine.layers.ranks import RankError
from daemon.engine.layers.recurrent.functions import recurring
from daemon.engine.layers.recurrent.heard import HeardRecurrence
from daemon.engine.verify.model.reference import attention
from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.sizing import heads_of
from daemon.models.shape import ModelShape

_UNKNOWN = {
    "position_bias": "it adds biases to attention scores",
    "relative_position_bias": "it adds biases to attention scores",
    "head_mask": "it masks heads",
}
_FIRST_MARK = 7000.0
"""The value of the first mask, so that a layer's call names its mask; no real mask has it."""

Sees = Callable[[int, int], bool]
"""Whether the query at a position sees the key at another."""


class AskedOfAttention(NamedTuple):
    """A model's demands on attention by layer, and why some of them cannot be computed."""

    windows: tuple[int, ...]  # tokens that a layer's queries see, themselves included; 0: all
    reasons: list[str]
    chunked: frozenset[int] = frozenset()  # the layers whose windows begin at multiples of these

    @property
    def sliding(self) -> tuple[int, ...]:
        """The windows that move on with each query; empty: there are none."""
        kept = tuple(
            0 if layer in self.chunked else size for layer, size in enumerate(self.windows)
        )
        return kept if any(kept) else ()


class _Window(NamedTuple):
    """The keys before a query that a mask lets it see."""

    tokens: int  # itself included; 0: all
    chunked: bool = False  # from a multiple of these on

    def first_key(self, query: int) -> int:
        """The first position that the query at a position sees."""
        if not self.tokens:
            return 0
        if self.chunked:
            return query // self.tokens * self.tokens
        return max(0, query - self.tokens + 1)


_ALL = _Window(0)

_RAISED = LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError
"""Errors of modelling code whose configuration makes no sense."""


class Heard(NamedTuple):
    """One call of attention."""

    layer: int | None
    heads: tuple[int, int, int, int]  # of queries, keys and values; size of a head of keys, values
    key: torch.Tensor  # kept, so that no other is taken for it
    mask: int | None  # index of the mask that it was given; None: it has none
    asked: dict[str, Any]


def listen(model: Any, shape: ModelShape, longest: int) -> AskedOfAttention:
    """The attention that the model asks for, in sequences of at most `longest` tokens."""
    calls, masks, recurrent = list[Heard](), list[Sees](), HeardRecurrence()
    AttentionInterface.register(LISTENING_NAME, partial(_heard, calls=calls))
    AttentionMaskInterface.register(LISTENING_NAME, partial(_marked, masks=masks))
    device = model.device
    try:
        with attention(model, LISTENING_NAME), recurring(recurrent):
            output = model(
                input_ids=torch.ones((1, 2), dtype=torch.int64, device=device),
                position_ids=torch.arange(2, device=device).unsqueeze(0),
                use_cache=False,
                logits_to_keep=torch.zeros(1, dtype=torch.int64, device=device),
            )
    except (torch.OutOfMemoryError, RankError):
        raise
    except _RAISED as error:
        said = f"its modelling code does not take one row of many tokens: {in_a_line(error)}"
        return AskedOfAttention((), [said])
    reasons = _reasons(calls, shape) + recurrent.reasons(shape.layer_states)
    windows = {call.layer: _window(call, masks, longest, reasons) for call in calls}
    if output.logits.shape[:2] != (1, 1):
        reasons.append("it does not give the logits of chosen tokens alone")
    found = [windows.get(layer, _ALL) for layer in range(shape.num_layers)]
    sizes = tuple(window.tokens for window in found)
    chunked = frozenset(layer for layer, window in enumerate(found) if window.chunked)
    return AskedOfAttention(sizes if any(sizes) else (), reasons, chunked)


def _marked(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *_offsets: Any,
    mask_function: Callable[..., Any],
    masks: list[Sees],
    device: Any = "cpu",
    **_ignored: Any,
) -> torch.Tensor:
    """A mask for transformers that says which of the `masks` it is, and hides nothing."""

    def sees(query: int, key: int) -> bool:
        return bool(mask_function(*torch.tensor([0, 0, query, key], device=device)))

    masks.append(sees)
    mark = _FIRST_MARK + len(masks) - 1
    return torch.full((batch_size, 1, q_length, kv_length), mark, device=device)


def _window(call: Heard, masks: list[Sees], longest: int, reasons: list[str]) -> _Window:
    """The window of a call's mask; `_ALL` where it has none that is narrower than `longest`."""
    if call.mask is None:
        window = call.asked.get("sliding_window")
        return _Window(window) if isinstance(window, int) and 0 < window < longest else _ALL
    if not 0 <= call.mask < len(masks):
        reasons.append("it makes attention masks of its own")
        return _ALL
    sees = masks[call.mask]
    try:
        size = _first_blind(sees, longest)
        windows = [_Window(size), _Window(size, chunked=True)] if size else [_ALL]
        for window in windows:
            if all(_agrees(sees, window, query) for query in _borders(size, longest)):
                return window
        reasons.append("its attention masks are no windows")
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        reasons.append(f"its attention masks cannot be read: {in_a_line(error)}")
    return _ALL


def _first_blind(sees: Sees, longest: int) -> int:
    """The first query that does not see the first key, where those behind it do not either; 0: all
    see it.
    """
    low, high = 1, longest
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if sees(middle, 0) else (low, middle)
    return low if low < longest else 0


def _borders(size: int, longest: int) -> list[int]:
    """Queries around the borders of windows or chunks of `size`, and some others."""
    last = longest - 1
    around = [border + by for border in (size, 2 * size) for by in (-1, 0, 1)]
    of_last = last // size * size if size else 0
    found = {0, 1, *around, last // 2, of_last - 1, of_last, last}
    return sorted(query for query in found if 0 <= query <= last)


def _agrees(sees: Sees, window: _Window, query: int) -> bool:
    """Whether a query sees the keys of its window, and none just beside them."""
    first = window.first_key(query)
    keys = {first - 1, first, query, query + 1} - {-1}
    return all(sees(query, key) == (first <= key <= query) for key in keys)


def _heard(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *_scale: Any,
    calls: list[Heard],
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers that answers zeros."""
    heads = (query.shape[1], key.shape[1], key.shape[3], value.shape[3])
    mask = None if attention_mask is None else round(float(attention_mask.max()) - _FIRST_MARK)
    calls.append(Heard(getattr(module, "layer_idx", None), heads, key, mask, asked))
    batch, num_heads, num_tokens, _ = query.shape
    latent = projection_of(module)
    width = value.shape[3] if latent is None else latent.value_dim
    return query.new_zeros((batch, num_tokens, num_heads, width)), None


def _reasons(calls: list[Heard], shape: ModelShape) -> list[str]:
    reasons = []
    expected: dict[int | None, KVHeads] = dict(enumerate(heads_of(shape)))
    attending = [layer for layer, heads in expected.items() if heads != NO_KEYS]
    if sorted(-1 if call.layer is None else call.layer for call in calls) != attending:
        reasons.append(
            f"its {len(attending)} layers ask for attention {len(calls)} times, not once each"
        )
    by_layer = {call.layer: call for call in calls}
    for call in calls:
        own = expected.get(call.layer, KVHeads(shape.num_kv_heads, shape.head_dim))
        value_dim = own.latent or own.head_dim
        if call.heads != (shape.num_heads, own.num_kv_heads, own.head_dim, value_dim):
            heads, kv_heads, key_dim, value_dim = call.heads
            reasons.append(
                f"its attention has {heads} heads ({kv_heads} of keys) of {key_dim} and "
                f"{value_dim}, where its configuration says {shape.num_heads} "
                f"({own.num_kv_heads}) of {own.head_dim}"
            )
        source = by_layer.get(own.source)
        if source is not None and source.key.data_ptr() != call.key.data_ptr():
            reasons.append("a layer has keys of its own, where its configuration says another's")
        reasons += [why for name, why in _UNKNOWN.items() if call.asked.get(name) is not None]
        if call.asked.get("is_causal") is False:
            reasons.append("its tokens also see those after them, as an encoder's do")
    return reasons

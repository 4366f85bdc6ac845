"""The layout of KV memory: kinds of layers, and the pages that a sequence holds of each.

Layers that see all tokens need the keys and values of all of them; layers with a window need those
of the last tokens alone; some read those of another layer and hold none, and some hold one latent
row for each token, of which keys and values are made. Layers of one kind form *groups*; a page is a
block of tokens of one group. All groups have pages of the same size, so that one pool serves all:
where the layers of a kind do not fill a group, or a group's layers a page, the rest is padding.
Where that would be too much, heads of large layers are shared out among groups.

Recurrent layers need a state of each sequence instead, of the same size however long it is: some
pages more, which a sequence holds from its first token on (`daemon.memory.state_layout`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from daemon.memory.state_layout import (
    StateLayout,
    StatePart,
    least_page_bytes,
    own_page_bytes,
    state_layout,
)

MOST_PADDING = 0.05
"""The largest share of padding beside the layers, of a sequence that no window cuts yet and of a
long one."""

BLOCKS_BEHIND = 2
"""Blocks held beside those that a window fills: the one that it begins in, and one to go back to
when tokens in flight are taken back."""

STATE = "state"
"""The kind of the pages of recurrent layers' states."""

_FIRST_SHOWN = 1024
_SHOWN_TIMES = 4


class KVHeads(msgspec.Struct, frozen=True):
    """The heads of a layer's keys and values; `NO_KEYS` where it has no attention."""

    num_kv_heads: int
    head_dim: int
    source: int = -1  # the layer whose keys and values it reads, as it has none; -1: it has
    latent: int = 0  # numbers of a token's one row that values are made of; 0: they lie apart

    @property
    def num_planes(self) -> int:
        """Rows of a token: its key and its value, or both in one."""
        return 1 if self.latent else 2

    @property
    def is_own(self) -> bool:
        """Whether the layer has keys and values, which are its own."""
        return self.source < 0 and self.num_kv_heads > 0


NO_KEYS = KVHeads(0, 0)
"""The heads of a layer without attention."""


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share pages; of a layer some heads, where several groups have parts of it."""

    window: int  # tokens that their queries see, themselves included; 0: all
    layers: tuple[int, ...]
    num_kv_heads: int  # of each layer here
    head_dim: int
    parts: tuple[int, ...] = ()  # which part of each layer's heads; empty: all have all
    chunked: bool = False  # a query sees its chunk: from a multiple of `window` on
    latent: int = 0  # see `KVHeads`

    @property
    def kind(self) -> str:
        """The tokens of a sequence that its pages hold: all, those of a window, or latent rows."""
        return kind_of(self.window, self.latent)


def kind_of(window: int, latent: int = 0) -> str:
    """The kind of layers with these, as `llmd check` names it."""
    return "window" if window else "latent" if latent else "full"


class KVLayout(msgspec.Struct, frozen=True):
    """The groups of a model's layers, those that hold all tokens first."""

    groups: tuple[LayerGroup, ...]
    page_tokens: int
    page_bytes: int
    sources: tuple[int, ...] = ()  # of each layer, whose it reads; empty: each has its own
    states: StateLayout | None = None  # of recurrent layers; None: there are none

    @property
    def state_pages(self) -> int:
        """The pages of a sequence's states. The cell of page j in a block table's row stands behind
        those of all groups: groups x `row_blocks` + j.
        """
        return 0 if self.states is None else self.states.num_pages

    def stretched(self, times: int) -> "KVLayout":
        """The layout with `times` as many bytes for all: of the same pages, in wider numbers."""
        states = None if self.states is None else self.states.stretched(times)
        wider = self.page_bytes * times
        return msgspec.structs.replace(self, page_bytes=wider, states=states)

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each group; 0: all tokens."""
        return tuple(group.window for group in self.groups)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each group."""
        return tuple(group.kind for group in self.groups)

    @property
    def shared(self) -> dict[int, int]:
        """The layers that hold nothing, and whose keys and values each reads."""
        return {layer: source for layer, source in enumerate(self.sources) if source >= 0}

    @property
    def is_plain(self) -> bool:
        """Whether a block has all layers, which see all tokens."""
        shared = bool(self.sources) or self.states is not None
        return len(self.groups) == 1 and not self.groups[0].window and not shared

    def pages_at(self, num_tokens: int, chunk: int = 0) -> int:
        """The pages that a sequence of `num_tokens` holds; with `chunk`, while they are computed,
        at most so many at a time.
        """
        num_blocks = -(-num_tokens // self.page_tokens)
        pages = _pages(num_blocks, self.windows, self.page_tokens, chunk)
        return pages + (self.state_pages if num_tokens else 0)

    def most_tokens(self, num_pages: int, longest: int, chunk: int) -> int:
        """See `most_tokens`."""
        left = num_pages - self.state_pages
        return most_tokens(left, longest, self.windows, self.page_tokens, chunk)

    def bytes_at(self, num_tokens: int) -> int:
        """Bytes of these pages."""
        return self.pages_at(num_tokens) * self.page_bytes


def agreed(own: KVLayout, others: Sequence[KVLayout]) -> KVLayout:
    """The layout of a pipeline stage whose pages one block table counts as those of `others`: of
    each window as many groups, some of no layer, and as many pages of states.
    """
    most = Counter[int]()
    for layout in (own, *others):
        most |= Counter(layout.windows)
    groups = list[LayerGroup]()
    for window, count in sorted(most.items()):
        mine = [group for group in own.groups if group.window == window]
        theirs = [group for it in others for group in it.groups if group.window == window]
        empty = [msgspec.structs.replace(it, layers=(), parts=(), chunked=False) for it in theirs]
        groups += mine + empty[:1] * (count - len(mine))
    num_pages = max(layout.state_pages for layout in (own, *others))
    return with_state_pages(msgspec.structs.replace(own, groups=tuple(groups)), num_pages)


def with_state_pages(layout: KVLayout, num_pages: int) -> KVLayout:
    """A layout with so many pages of states, some of them empty."""
    if num_pages == layout.state_pages:
        return layout
    states = layout.states or StateLayout((), 0, ())
    states = msgspec.structs.replace(states, num_pages=num_pages)
    return msgspec.structs.replace(layout, states=states)


def held_blocks(num_blocks: int, window: int, block_size: int, chunk: int = 0) -> int:
    """The last of a sequence's `num_blocks` that a group with this window holds; with `chunk`,
    while steps compute at most so many tokens of it.
    """
    if not window:
        return num_blocks
    if chunk:
        window += chunk + block_size
    return min(num_blocks, -(-window // block_size) + BLOCKS_BEHIND)


def _pages(num_blocks: int, windows: tuple[int, ...], block_size: int, chunk: int) -> int:
    return sum(held_blocks(num_blocks, window, block_size, chunk) for window in windows)


def most_tokens(
    num_pages: int, longest: int, windows: tuple[int, ...], block_size: int, chunk: int
) -> int:
    """The longest sequence, of at most `longest`, that so many pages of groups with these windows
    hold while its prompt is computed, at most `chunk` tokens at a time.
    """
    low, high = 0, -(-longest // block_size)
    while low < high:
        middle = (low + high + 1) // 2
        fits = _pages(middle, windows, block_size, chunk) <= num_pages
        low, high = (middle, high) if fits else (low, middle - 1)
    return min(longest, low * block_size)


def row_blocks(max_len: int, block_size: int) -> int:
    """The cells that a group has of a block table's row, for sequences of at most `max_len`."""
    return -(-max_len // block_size) + 1


class _Kind(NamedTuple):
    """Layers whose tokens are held alike; ordered, those of all tokens first."""

    window: int
    num_kv_heads: int  # of a part of a layer
    head_dim: int
    num_parts: int  # of a layer
    chunked: bool
    latent: int


_Kinds = dict[_Kind, list[tuple[int, int]]]
"""The layers of each kind, and which part of their heads."""


def layout_of(
    windows: Sequence[int],
    layers: Sequence[KVHeads],
    head_bytes: Callable[[int], int],
    page_tokens: int,
    chunked: Collection[int] = (),
    states: Sequence[Sequence[StatePart]] = (),
    number_bytes: int = 0,
) -> KVLayout:
    """The layout of layers with these `windows` (0: all tokens) and heads; `head_bytes` are those
    of a token's key in one head, by the head's size. `chunked`: the layers whose windows are
    chunks, of which the last whole one may be needed. `states`: what each layer keeps, in numbers
    of `number_bytes`; empty: there are no recurrent layers.

    The largest pages whose padding is at most `MOST_PADDING`: a block table has a column for each
    group. Layers are taken apart only if there are none otherwise.
    """
    packed: StateLayout | None = None
    if not any(heads.is_own for heads in layers):
        page_bytes = own_page_bytes(states, number_bytes)
        packed = state_layout(states, page_bytes, number_bytes)
        return KVLayout((), page_tokens, page_bytes, states=packed)
    whole = _kinds(windows, layers, head_bytes, chunked, apart=False)
    chosen = _token_bytes(whole, head_bytes)
    kinds = whole
    if not chosen:
        kinds = _kinds(windows, layers, head_bytes, chunked, apart=True)
        chosen = _token_bytes(kinds, head_bytes)
    if not chosen:
        kinds, chosen = whole, max(_size(kind, head_bytes) for kind in whole)
    groups = [
        _group(kind, placed[first : first + chosen // _size(kind, head_bytes)])
        for kind, placed in sorted(kinds.items())
        for first in range(0, len(placed), chosen // _size(kind, head_bytes))
    ]
    sources = tuple(heads.source for heads in layers)
    shares = any(source >= 0 for source in sources)
    page_bytes = chosen * page_tokens
    if any(states):
        page_bytes = max(page_bytes, least_page_bytes(states, number_bytes))
        packed = state_layout(states, page_bytes, number_bytes)
    return KVLayout(tuple(groups), page_tokens, page_bytes, sources if shares else (), packed)


def _kinds(
    windows: Sequence[int],
    layers: Sequence[KVHeads],
    head_bytes: Callable[[int], int],
    chunked: Collection[int],
    apart: bool,
) -> _Kinds:
    """The kinds of layers; with `apart`, larger layers in parts no smaller than the smallest."""
    own = [
        (layer, _of_layer(heads, window, layer in chunked))
        for layer, (window, heads) in enumerate(zip(windows, layers, strict=True))
        if heads.is_own
    ]
    least = min(_size(kind, head_bytes) for _, kind in own)
    kinds: _Kinds = {}
    for layer, kind in own:
        most = _size(kind, head_bytes) // least if apart else 1
        num_parts = max(n for n in range(1, most + 1) if kind.num_kv_heads % n == 0)
        part = kind._replace(num_kv_heads=kind.num_kv_heads // num_parts, num_parts=num_parts)
        kinds.setdefault(part, []).extend((layer, number) for number in range(num_parts))
    return kinds


def _of_layer(heads: KVHeads, window: int, is_chunked: bool) -> _Kind:
    return _Kind(window, heads.num_kv_heads, heads.head_dim, 1, is_chunked, heads.latent)


def _size(kind: _Kind, head_bytes: Callable[[int], int]) -> int:
    """Bytes of a token's keys and values in a part of a layer."""
    heads = KVHeads(kind.num_kv_heads, kind.head_dim, latent=kind.latent)
    return token_bytes(heads, head_bytes)


def token_bytes(heads: KVHeads, head_bytes: Callable[[int], int]) -> int:
    """Bytes that a layer with these heads holds of a token; `head_bytes`: see `layout_of`."""
    return heads.num_planes * heads.num_kv_heads * head_bytes(heads.head_dim)


def _group(kind: _Kind, placed: list[tuple[int, int]]) -> LayerGroup:
    return LayerGroup(
        window=kind.window,
        layers=tuple(layer for layer, _ in placed),
        num_kv_heads=kind.num_kv_heads,
        head_dim=kind.head_dim,
        parts=tuple(part for _, part in placed) if kind.num_parts > 1 else (),
        chunked=kind.chunked,
        latent=kind.latent,
    )


def _token_bytes(kinds: _Kinds, head_bytes: Callable[[int], int]) -> int:
    """A page's bytes of a token: the most with little padding; 0: there are none."""
    counted = [(kind.window, _size(kind, head_bytes), len(own)) for kind, own in kinds.items()]
    sizes = {size * n for _, size, count in counted for n in range(1, count + 1)}
    fitting = [size for size in sizes if all(size >= least for _, least, _ in counted)]
    full = [
        size for size in fitting if all(_is_full(size, counted, long) for long in (False, True))
    ]
    return max(full, default=0)


def _is_full(size: int, kinds: list[tuple[int, int, int]], long: bool) -> bool:
    """Whether groups of `size` have little padding; in a long sequence those of all tokens alone
    count. `kinds`: window, size and number of layers of each.
    """
    counted = [(each, count) for window, each, count in kinds if not (long and window)]
    plain = sum(each * count for each, count in counted)
    padded = sum(-(-count // (size // each)) * size for each, count in counted)
    return padded <= (1.0 + MOST_PADDING) * plain


def shown_lengths(longest: int) -> Iterator[int]:
    """Lengths at which a sequence's bytes are shown: some in between, and the longest."""
    length = _FIRST_SHOWN
    while length < longest:
        yield length
        length *= _SHOWN_TIMES if length > _FIRST_SHOWN else 8
    yield longest

"""The layout of a KV block, the part of it that goes over a link, and whether two ends agree."""

import math
from typing import Any, NamedTuple

import msgspec

from daemon.engine.kv.pool import PagedKV
from daemon.memory.layout import LayerGroup
from daemon.memory.sizing import SCALE_BYTES
from daemon.models.kv_parts import KVPart
from daemon.models.rank_shares import Range

WHOLE = -1
"""In place of a layer: all of a block."""


class TransferError(Exception):
    """Blocks cannot be transferred; the message says why."""


class ByteSpan(NamedTuple):
    """Some bytes of every block: one piece, or several at equal distances."""

    start: int
    size: int  # of a piece
    num_pieces: int = 1
    pitch: int = 0  # from the start of a piece to that of the next

    @property
    def total(self) -> int:
        """Bytes of all pieces."""
        return self.size * self.num_pieces


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a pool's blocks, and the part of each that goes over a link.

    Whole blocks are copied byte by byte between equal ones. Parts may lie in blocks of other
    numbers of layers and heads; both ends pack theirs in the order of layers, tokens and heads.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # of the states
    kv_dtype: str  # as stored
    block_bytes: int
    groups: tuple[LayerGroup, ...] = ()  # of layers, where a block has not all
    num_planes: int = 2  # rows of a token in a layer: see `PagedKV`
    part: KVPart | None = None  # None: whole blocks

    @property
    def layers(self) -> Range:
        """The layers that go over the link; those of a page, where layers form groups."""
        found = self.part.layers if self.part is not None else None
        return Range(0, self.num_layers) if found is None else found

    @property
    def heads(self) -> Range:
        """The heads of them that do."""
        found = self.part.heads if self.part is not None else None
        return Range(0, self.num_kv_heads) if found is None else found

    @property
    def word_bytes(self) -> int:
        """The largest word that all pieces consist of, at both ends."""
        if self.part is None:
            layers = range(self.num_layers)
            edges = [edge for layer in layers for span in self.spans(layer) for edge in span[:2]]
            common = math.gcd(self.block_bytes, *edges)
        else:
            eight_bit = self.kv_dtype in _EIGHT_BIT
            scales = self.block_size * SCALE_BYTES if eight_bit else 0
            common = math.gcd(self.head_dim * _ITEM_BYTES[self.kv_dtype], scales)
        return next(size for size in (8, 4, 1) if common % size == 0)

    def spans(self, layer: int) -> tuple[ByteSpan, ...]:
        """Spans of a layer's keys, values and scales in a block; of all layers for `WHOLE`. Layers
        are counted from the first that goes over the link.
        """
        if layer != WHOLE:
            first = self.layers.first + layer
            return self._of(Range(first, first + 1), self.heads)
        if self.part is not None:
            return self._of(self.layers, self.heads)
        return (ByteSpan(0, self.block_bytes),)

    def _of(self, layers: Range, heads: Range) -> tuple[ByteSpan, ...]:
        """Spans of these heads of layers, and of their scales."""
        planes = self.num_planes * self.block_size, self.head_dim * _ITEM_BYTES[self.kv_dtype]
        spans = [self._pieces(0, layers, heads, *planes)]
        if self.kv_dtype in _EIGHT_BIT:
            begin = self.num_layers * self.num_kv_heads * math.prod(planes)
            scales = self.num_planes, self.block_size * SCALE_BYTES
            spans.append(self._pieces(begin, layers, heads, *scales))
        return tuple(spans)

    def _pieces(
        self, begin: int, layers: Range, heads: Range, num_rows: int, head_bytes: int
    ) -> ByteSpan:
        """Heads of layers that have `num_rows` rows of all heads each, from the byte `begin` on."""
        row = self.num_kv_heads * head_bytes
        start = begin + layers.first * num_rows * row + heads.first * head_bytes
        count, size = layers.size * num_rows, heads.size * head_bytes
        return ByteSpan(start, count * size) if size == row else ByteSpan(start, size, count, row)

    def size(self, layer: int) -> int:
        """Bytes of a block that belong to a layer, or to all of them."""
        return sum(span.total for span in self.spans(layer))

    def has(self, layer: int) -> bool:
        """Whether so many layers go over the link, or it is `WHOLE`."""
        return layer == WHOLE or 0 <= layer < self.layers.size

    def check(self, other: "Layout") -> None:
        """Raise TransferError where what another pool takes or gives differs, with what does."""
        mine, theirs = self._compared(), other._compared()
        faults = [
            f"{name} {mine.get(name)} here and {theirs.get(name)} there"
            for name in mine | theirs
            if mine.get(name) != theirs.get(name)
        ]
        if faults:
            raise TransferError(f"the pools' blocks differ: {', '.join(faults)}")

    def _compared(self) -> dict[str, Any]:
        """The fields that both ends have alike."""
        found = msgspec.structs.asdict(self)
        if self.part is None:
            return found
        for name in ("num_layers", "num_kv_heads", "block_bytes", "part"):
            del found[name]
        several = len(self.groups) > 1  # one has all layers, of which these are some
        found["groups"] = [
            (group.window, group.chunked, group.latent, group.layers if several else ())
            for group in self.groups
        ]
        return found | {"layers": self.layers.size, "heads": self.heads.size}


_ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "float8_e4m3fn": 1,
}
_EIGHT_BIT = ("int8", "float8_e4m3fn")


def layout_of(cache: PagedKV, part: KVPart | None = None) -> Layout:
    """The layout of a pool's blocks. Raises TransferError where they have no such part."""
    _, num_layers, _, block_size, num_kv_heads, head_dim = cache.blocks.shape
    layout = Layout(
        num_layers=num_layers,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=str(cache.dtype).removeprefix("torch."),
        kv_dtype=str(cache.blocks.dtype).removeprefix("torch."),
        block_bytes=cache.block_bytes,
        groups=() if cache.layout is None else cache.layout.groups,
        num_planes=cache.num_planes,
        part=part,
    )
    for (first, last), count in ((layout.layers, num_layers), (layout.heads, num_kv_heads)):
        if not 0 <= first < last <= count:
            raise TransferError(f"there is no part {first} to {last} of {count}")
    return layout

"""The layout of a KV block, and whether two pools agree on it."""

from typing import NamedTuple

import msgspec

from daemon.engine.kv.pool import PagedKV
from daemon.memory.layout import LayerGroup
from daemon.memory.sizing import SCALE_BYTES

WHOLE = -1
"""In place of a layer: all of a block."""


class TransferError(Exception):
    """Blocks cannot be transferred; the message says why."""


class ByteSpan(NamedTuple):
    """Some bytes of every block."""

    start: int
    size: int


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a pool's blocks; only equal ones can be copied byte by byte."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # of the states
    kv_dtype: str  # as stored
    block_bytes: int
    groups: tuple[LayerGroup, ...] = ()  # of layers, where a block has not all
    num_planes: int = 2  # rows of a token in a layer: see `PagedKV`

    def spans(self, layer: int) -> tuple[ByteSpan, ...]:
        """Spans of a layer's keys, values and scales in a block; all of it for `WHOLE`."""
        if layer == WHOLE:
            return (ByteSpan(0, self.block_bytes),)
        per_token = self.num_kv_heads * self.head_dim
        cells = self.num_planes * self.block_size * per_token * _ITEM_BYTES[self.kv_dtype]
        eight_bit = self.kv_dtype in _EIGHT_BIT
        of_scales = self.num_planes * self.block_size * self.num_kv_heads * SCALE_BYTES
        scales = of_scales if eight_bit else 0
        spans = [ByteSpan(layer * cells, cells)]
        if scales:
            spans.append(ByteSpan(self.num_layers * cells + layer * scales, scales))
        return tuple(spans)

    def size(self, layer: int) -> int:
        """Bytes of a block that belong to a layer, or to all of them."""
        return sum(span.size for span in self.spans(layer))

    def has(self, layer: int) -> bool:
        """Whether there is such a layer, or it is `WHOLE`."""
        return layer == WHOLE or 0 <= layer < self.num_layers

    def check(self, other: "Layout") -> None:
        """Raise TransferError where another pool's blocks differ, with what differs."""
        fields = (
            (name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__
        )
        faults = [
            f"{name} {mine} here and {theirs} there"
            for name, mine, theirs in fields
            if mine != theirs
        ]
        if faults:
            raise TransferError(f"the pools' blocks differ: {', '.join(faults)}")


_ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "float8_e4m3fn": 1,
}
_EIGHT_BIT = ("int8", "float8_e4m3fn")


def layout_of(cache: PagedKV) -> Layout:
    """The layout of a pool's blocks."""
    _, num_layers, _, block_size, num_kv_heads, head_dim = cache.blocks.shape
    return Layout(
        num_layers=num_layers,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=str(cache.dtype).removeprefix("torch."),
        kv_dtype=str(cache.blocks.dtype).removeprefix("torch."),
        block_bytes=cache.block_bytes,
        groups=() if cache.layout is None else cache.layout.groups,
        num_planes=cache.num_planes,
    )

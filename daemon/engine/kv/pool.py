"""The KV pool of one instance: blocks of all layers, so that a block is one contiguous copy.

Where layers are of several kinds, they form groups (`daemon.memory.layout`), and a block has those
of one group. Each group has a view of the pool with its own shape, where its layers count from 0.

A block is one row of bytes in `raw`: the keys and values, and behind them their scales where the
cache holds them in 8 bits (see `daemon.engine.kv.eight_bit`). Code that moves blocks moves rows of
`raw` and need not know what they hold; code that computes reads `blocks` and `scales`, its views.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.batch.upload import upload
from daemon.engine.kv.eight_bit import LARGEST, quantise
from daemon.memory.layout import KVHeads, KVLayout, LayerGroup, token_bytes
from daemon.memory.sizing import SCALE_BYTES
from daemon.wire.columns import Column, Int64


class Place(NamedTuple):
    """The place of a layer's keys and values, or of some of their heads."""

    group: int
    number: int  # of the layer within its group


class PagedKV:
    """Keys and values as `blocks` [block, layer, 2, block_size, kv_head, head_dim].

    Of layers with latent attention one row for each token, [block, layer, 1, block_size, 1, width],
    which is the key of all heads; its first `latent` numbers are their value.

    Zeroed at first. What a former owner left in a block stays there, NaN too: attention must not
    read beyond a sequence's end, not even to multiply it by zero.
    """

    def __init__(
        self,
        num_blocks: int,
        num_layers: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
        raw: torch.Tensor | None = None,
        latent: int = 0,
    ) -> None:
        """`dtype` is that of states; `kv_dtype` int8 or float8_e4m3fn, None: as `dtype`. `raw`: the
        bytes of another pool's blocks, which this is a view of; they may be more than it needs.
        """
        stored = dtype if kv_dtype is None else kv_dtype
        self.latent, self.num_planes = latent, 1 if latent else 2
        shape = (num_layers, self.num_planes, block_size, num_kv_heads, head_dim)
        num_cells = math.prod(shape)
        cell_bytes = num_cells * stored.itemsize
        scale_bytes = num_cells // head_dim * SCALE_BYTES if stored in LARGEST else 0
        self.dtype, self.kv_dtype = dtype, stored
        self.num_blocks = num_blocks
        self.num_layers = num_layers
        self.block_size = block_size
        self.raw = _zeroed((num_blocks, cell_bytes + scale_bytes), device) if raw is None else raw
        self.block_bytes = self.raw.shape[1]
        self.blocks = self.raw[:, :cell_bytes].view(stored).view(num_blocks, *shape)
        self.scales: torch.Tensor | None = None
        if scale_bytes:
            scales = self.raw[:, cell_bytes : cell_bytes + scale_bytes].view(torch.float32)
            # A head's scales of a block lie side by side: attention reads them as one piece.
            planes = num_layers, self.num_planes
            scales = scales.view(num_blocks, *planes, num_kv_heads, block_size)
            self.scales = scales.transpose(-1, -2)
        # Tokens written of each block, in order from its first; all, where they were not counted.
        self.fills = np.full(num_blocks, block_size, np.int32)
        self.layout: KVLayout | None = None  # None: one group of all layers, which see all tokens
        self.views: tuple[PagedKV, ...] = (self,)  # of each group
        self.places: dict[int, tuple[Place, ...]] = {}  # of each layer, in order of its heads

    @staticmethod
    def of_layout(
        num_blocks: int,
        layout: KVLayout,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
    ) -> "PagedKV":
        """A pool for several groups of layers, and for states. It is itself a view: of the group
        that fills most of a block; of no layer where none has keys.
        """
        shapes: dict[KVHeads, int] = {}
        for group in layout.groups:
            shapes[_heads(group)] = max(shapes.get(_heads(group), 0), len(group.layers))
        stored = dtype if kv_dtype is None else kv_dtype
        page_bytes = _page_bytes(shapes, layout.page_tokens, stored)
        if layout.states is not None:
            page_bytes = max(page_bytes, layout.page_bytes)
        raw = _zeroed((num_blocks, page_bytes), device)
        views: dict[KVHeads, PagedKV] = {}
        for heads, num_layers in shapes.items():
            sizes = num_blocks, num_layers, layout.page_tokens, heads.num_kv_heads, heads.head_dim
            views[heads] = PagedKV(*sizes, dtype, device, kv_dtype, raw, heads.latent)
        if views:
            pool = views[max(shapes, key=lambda heads: token_bytes(heads, int) * shapes[heads])]
        else:
            pool = PagedKV(num_blocks, 0, layout.page_tokens, 1, 1, dtype, device, None, raw)
        pool.layout, pool.places = layout, _places(layout)
        pool.views = tuple(views[_heads(group)] for group in layout.groups)
        return pool

    def twin(self, num_blocks: int, dtype: torch.dtype) -> "PagedKV":
        """A pool of so many blocks whose layers and groups are the same, of numbers as `dtype`."""
        if self.layout is not None:
            times = -(-dtype.itemsize // self.dtype.itemsize)
            layout = self.layout if times == 1 else self.layout.stretched(times)
            return PagedKV.of_layout(num_blocks, layout, dtype, self.raw.device)
        block_size, num_kv_heads, head_dim = self.blocks.shape[3:]
        sizes = num_blocks, self.num_layers, block_size, num_kv_heads, head_dim
        return PagedKV(*sizes, dtype, self.raw.device, latent=self.latent)

    @property
    def num_groups(self) -> int:
        """Groups of layers, each with blocks of its own."""
        return len(self.views)

    def row_blocks(self, num_cells: int) -> int:
        """Blocks of each group that a row of so many cells has room for; all, where no layer has
        keys.
        """
        if not self.num_groups:
            return self.num_blocks
        return (num_cells - self.state_pages) // self.num_groups

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each group; empty: there is one group, whose layers see all tokens."""
        windows = () if self.layout is None else self.layout.windows
        return windows if self.num_groups > 1 or any(windows) or self.state_pages else ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of these groups."""
        return self.layout.kinds if self.layout is not None and self.windows else ()

    @property
    def state_pages(self) -> int:
        """The pages of a sequence's states, behind those of all groups in a block table."""
        return 0 if self.layout is None else self.layout.state_pages

    @property
    def is_direct(self) -> bool:
        """Whether attention is that of a block with all layers, which count as in the model."""
        held = self.layout
        if held is None:
            return True
        single = len(held.groups) == 1 and not held.groups[0].chunked
        return single and not held.sources and held.states is None

    @property
    def is_uniform(self) -> bool:
        """Whether all blocks have one shape, and none holds states."""
        return not self.state_pages and all(view is self for view in self.views)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(tokens of a block, groups of layers, pages of states): what a batch is flattened by."""
        return self.block_size, self.num_groups, self.state_pages

    def row_of(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Number of layer 0's key at an offset of each block, over all keys and values; int64."""
        return blocks * (self.num_layers * self.num_planes * self.block_size) + offsets

    def row_shift(self, layer: int, values: bool) -> int:
        """The offset to add to `row_of` for a layer's keys or values."""
        return (self.num_planes * layer + int(values)) * self.block_size

    def write(self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put `key`, `value` [T, kv_head, head_dim] at `rows` [T] of a layer; see `row_of`. Latent
        rows are given as keys.
        """
        self._put(rows + self.row_shift(layer, False), key)
        if not self.latent:
            self._put(rows + self.row_shift(layer, True), value)

    def read(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [T, kv_head, head_dim] at `rows` [T] of a layer, in `dtype`; copies."""
        keys = self._get(rows + self.row_shift(layer, False))
        if self.latent:
            return keys, keys[..., : self.latent]
        return keys, self._get(rows + self.row_shift(layer, True))

    def copy(self, sources: Column, targets: Column) -> None:
        """Copy whole blocks; every source is read before any target is written."""
        if len(sources):
            device = self.raw.device
            words = self.raw.view(torch.int64 if self.block_bytes % 8 == 0 else torch.uint8)
            index = upload(sources.astype(np.int64), device)
            words[upload(targets.astype(np.int64), device)] = words[index]
            self.fills[targets] = self.fills[sources]

    def fill(self, blocks: Int64, offsets: Int64) -> None:
        """Note that a step writes these tokens [T]; of a block, in rising order."""
        self.fills[blocks] = offsets + 1

    def _put(self, rows: torch.Tensor, states: torch.Tensor) -> None:
        if self.scales is not None:
            stored, scales = quantise(states, self.kv_dtype)
            cells = self._cells(rows)
            # As bytes: what moves numbers without reading them knows more types of them.
            self._planes(self.blocks).view(torch.uint8)[cells] = stored.view(torch.uint8)
            self._planes(self.scales)[cells] = scales
        elif self.blocks.is_contiguous():
            self.blocks.view(-1, *states.shape[1:]).index_copy_(0, rows, states)
        else:
            self._planes(self.blocks)[self._cells(rows)] = states

    def _get(self, rows: torch.Tensor) -> torch.Tensor:
        if self.scales is not None:
            cells = self._cells(rows)
            stored = self._planes(self.blocks).view(torch.uint8)[cells].view(self.kv_dtype)
            return (stored.float() * self._planes(self.scales)[cells].unsqueeze(-1)).to(self.dtype)
        if self.blocks.is_contiguous():
            return self.blocks.view(-1, *self.blocks.shape[4:]).index_select(0, rows)
        return self._planes(self.blocks)[self._cells(rows)]

    def _cells(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Block, plane (keys or values of a layer) and offset of numbers made by `row_of`."""
        planes = rows // self.block_size
        num_planes = self.num_planes * self.num_layers
        return planes // num_planes, planes % num_planes, rows % self.block_size

    def _planes(self, view: torch.Tensor) -> torch.Tensor:
        """`blocks` or `scales` as [block, plane, block_size, ...]."""
        return view.flatten(1, 2)


def _places(layout: KVLayout) -> dict[int, tuple[Place, ...]]:
    """The places of each layer, in the order of their heads."""
    found: dict[int, dict[int, Place]] = {}
    for index, group in enumerate(layout.groups):
        parts = group.parts or (0,) * len(group.layers)
        for number, (layer, part) in enumerate(zip(group.layers, parts, strict=True)):
            found.setdefault(layer, {})[part] = Place(index, number)
    own = {
        layer: tuple(place for _, place in sorted(parts.items())) for layer, parts in found.items()
    }
    return own | {layer: own[source] for layer, source in layout.shared.items()}


def _heads(group: LayerGroup) -> KVHeads:
    return KVHeads(group.num_kv_heads, group.head_dim, latent=group.latent)


def _page_bytes(shapes: Mapping[KVHeads, int], page_tokens: int, stored: torch.dtype) -> int:
    """Bytes of the largest block; `shapes`: the most layers of a group, by their heads."""
    more = SCALE_BYTES if stored in LARGEST else 0
    sizes = (
        num_layers * token_bytes(heads, lambda head_dim: head_dim * stored.itemsize + more)
        for heads, num_layers in shapes.items()
    )
    return page_tokens * max(sizes, default=0)


def _zeroed(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Zero bytes; on a CPU the kernel's own zero pages: a block costs RAM only once used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    return zero_pages(math.prod(shape)).view(shape)


def zero_pages(size_bytes: int) -> torch.Tensor:
    """Zero bytes on the host that take RAM only once used."""
    return torch.from_numpy(np.zeros(size_bytes, np.uint8))

"""The KV pool of one instance: blocks of all layers, so that a block is one contiguous copy.

A block is one row of bytes in `raw`: the keys and values, and behind them their scales where the
cache holds them in 8 bits (see `daemon.engine.kv.eight_bit`). Code that moves blocks moves rows of
`raw` and need not know what they hold; code that computes reads `blocks` and `scales`, its views.
"""

import math

import numpy as np
import torch

from daemon.engine.batch.upload import upload
from daemon.engine.kv.eight_bit import LARGEST, quantise
from daemon.memory.sizing import SCALE_BYTES
from daemon.wire.columns import Column, Int64


class PagedKV:
    """Keys and values as `blocks` [block, layer, 2, block_size, kv_head, head_dim].

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
    ) -> None:
        """`dtype` is that of states; `kv_dtype` int8 or float8_e4m3fn, None: as `dtype`."""
        stored = dtype if kv_dtype is None else kv_dtype
        shape = (num_layers, 2, block_size, num_kv_heads, head_dim)
        num_cells = math.prod(shape)
        cell_bytes = num_cells * stored.itemsize
        scale_bytes = num_cells // head_dim * SCALE_BYTES if stored in LARGEST else 0
        self.dtype, self.kv_dtype = dtype, stored
        self.num_blocks = num_blocks
        self.num_layers = num_layers
        self.block_size = block_size
        self.block_bytes = cell_bytes + scale_bytes
        self.raw = _zeroed((num_blocks, self.block_bytes), device)
        self.blocks = self.raw[:, :cell_bytes].view(stored).view(num_blocks, *shape)
        self.scales: torch.Tensor | None = None
        if scale_bytes:
            scales = self.raw[:, cell_bytes:].view(torch.float32)
            # A head's scales of a block lie side by side: attention reads them as one piece.
            scales = scales.view(num_blocks, num_layers, 2, num_kv_heads, block_size)
            self.scales = scales.transpose(-1, -2)
        # Tokens written of each block, in order from its first; all, where they were not counted.
        self.fills = np.full(num_blocks, block_size, np.int32)

    def row_of(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Number of layer 0's key at an offset of each block, over all keys and values; int64."""
        return blocks * (self.num_layers * 2 * self.block_size) + offsets

    def row_shift(self, layer: int, values: bool) -> int:
        """The offset to add to `row_of` for a layer's keys or values."""
        return (2 * layer + int(values)) * self.block_size

    def write(self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put `key`, `value` [T, kv_head, head_dim] at `rows` [T] of a layer; see `row_of`."""
        self._put(rows + self.row_shift(layer, False), key)
        self._put(rows + self.row_shift(layer, True), value)

    def read(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [T, kv_head, head_dim] at `rows` [T] of a layer, in `dtype`; copies."""
        keys = self._get(rows + self.row_shift(layer, False))
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
        if self.scales is None:
            self.blocks.view(-1, *states.shape[1:]).index_copy_(0, rows, states)
            return
        stored, scales = quantise(states, self.kv_dtype)
        cells = self._cells(rows)
        # As bytes: what moves numbers without reading them knows more types of them.
        self._planes(self.blocks).view(torch.uint8)[cells] = stored.view(torch.uint8)
        self._planes(self.scales)[cells] = scales

    def _get(self, rows: torch.Tensor) -> torch.Tensor:
        if self.scales is None:
            return self.blocks.view(-1, *self.blocks.shape[4:]).index_select(0, rows)
        cells = self._cells(rows)
        stored = self._planes(self.blocks).view(torch.uint8)[cells].view(self.kv_dtype)
        return (stored.float() * self._planes(self.scales)[cells].unsqueeze(-1)).to(self.dtype)

    def _cells(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Block, plane (keys or values of a layer) and offset of numbers made by `row_of`."""
        planes = rows // self.block_size
        num_planes = 2 * self.num_layers
        return planes // num_planes, planes % num_planes, rows % self.block_size

    def _planes(self, view: torch.Tensor) -> torch.Tensor:
        """`blocks` or `scales` as [block, plane, block_size, ...]."""
        return view.flatten(1, 2)


def _zeroed(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Zero bytes; on a CPU the kernel's own zero pages: a block costs RAM only once used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    return zero_pages(math.prod(shape)).view(shape)


def zero_pages(size_bytes: int) -> torch.Tensor:
    """Zero bytes on the host that take RAM only once used."""
    return torch.from_numpy(np.zeros(size_bytes, np.uint8))

"""The KV pool of one instance: blocks of all layers, so that a block is one contiguous copy."""

import math

import numpy as np
import torch

from daemon.wire.columns import Column, Int64


class KVCache:
    """Keys and values as `blocks` [block, layer, 2, block_size, kv_head, head_dim].

    Zeroed at first: attention multiplies what lies beyond a sequence's end by zero, and memory
    that was never written may hold NaN.
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
    ) -> None:
        shape = (num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim)
        self.blocks = _zeroed(shape, dtype, device)
        self.num_blocks = num_blocks
        self.num_layers = num_layers
        self.block_size = block_size
        self.block_bytes = self.blocks[0].nbytes
        # Tokens written of each block, in order from its first; all, where nobody counted them.
        self.fills = np.full(num_blocks, block_size, np.int32)
        self._rows = self.blocks.view(-1, num_kv_heads, head_dim)

    @property
    def rows(self) -> torch.Tensor:
        """The pool as single keys and values [row, kv_head, head_dim]; see `row_of`."""
        return self._rows

    def row_of(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Index among `rows` of layer 0's keys at an offset of each block; int64, like `blocks`."""
        return blocks * (self.num_layers * 2 * self.block_size) + offsets

    def row_shift(self, layer: int, values: bool) -> int:
        """What to add to `row_of` for a layer's keys or values."""
        return (2 * layer + int(values)) * self.block_size

    def write(self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put `key`, `value` [T, kv_head, head_dim] at `rows` [T] of a layer; see `row_of`."""
        self._rows.index_copy_(0, rows + self.row_shift(layer, False), key)
        self._rows.index_copy_(0, rows + self.row_shift(layer, True), value)

    def copy(self, sources: Column, targets: Column) -> None:
        """Copy whole blocks; every source is read before any target is written."""
        if len(sources):
            device = self.blocks.device
            index = torch.from_numpy(sources.astype(np.int64)).to(device)
            self.blocks[torch.from_numpy(targets.astype(np.int64)).to(device)] = self.blocks[index]
            self.fills[targets] = self.fills[sources]

    def fill(self, blocks: Int64, offsets: Int64) -> None:
        """Note that a step writes these tokens [T]; of a block, in rising order."""
        self.fills[blocks] = offsets + 1


def _zeroed(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU the kernel's own zero pages, so that a block costs RAM only once used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zero_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


def zero_pages(size_bytes: int) -> torch.Tensor:
    """Zero bytes on the host that take RAM only once used."""
    return torch.from_numpy(np.zeros(size_bytes, np.uint8))

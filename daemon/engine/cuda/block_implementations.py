"""Implementations of a product with a quantised weight on a GPU, and those worth measuring."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from daemon.engine.cuda.candidates import SCRATCH_CELLS, DeviceRoom
from daemon.engine.cuda.product_implementations import Implementation
from daemon.engine.cuda.triton.block_products import TENSOR_ROWS, BlockTile, block_product
from daemon.engine.cuda.triton.blocks import unpack_rows
from daemon.engine.cuda.triton.skinny import Scratch
from daemon.engine.cuda.triton.tiles import power_of_2
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.memory.sizing import GPU_PANEL_BYTES

MAX_BLOCK_ROWS = 64
"""Rows from which on the library makes up for the unpacking of a weight."""

_PANEL_ROWS = 16
"""Panels begin at multiples of this many rows, where kernels may load as from a weight's first."""
_TILES = (
    BlockTile(rows=1, outputs=1, columns=1024, warps=4),
    BlockTile(rows=1, outputs=2, columns=1024, warps=4),
    BlockTile(rows=1, outputs=4, columns=512, warps=4),
    BlockTile(rows=2, outputs=1, columns=1024, warps=4),
    BlockTile(rows=2, outputs=4, columns=512, warps=4),
    BlockTile(rows=4, outputs=1, columns=1024, warps=4),
    BlockTile(rows=4, outputs=2, columns=512, warps=4),
    BlockTile(rows=16, outputs=32, columns=256, warps=4),
    BlockTile(rows=16, outputs=64, columns=128, warps=4),
    BlockTile(rows=32, outputs=64, columns=128, warps=4),
    BlockTile(rows=32, outputs=128, columns=128, warps=8),
    BlockTile(rows=64, outputs=64, columns=128, warps=4),
    BlockTile(rows=64, outputs=128, columns=128, warps=8),
)
_PROGRAMS_OF_A_PROCESSOR = 2
_MIN_PIECES = 4
"""Pieces of a tile's columns that a split must at least add up."""


@dataclass(frozen=True, slots=True)
class PlainBlocks:
    """torch, as the layers of transformers' models compute it: what is right by definition."""

    name: str = "torch"

    def __call__(
        self, states: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Implementation`."""
        plain = QuantisedLinear(weight.columns, weight.rows, None, [weight])(states)
        return plain if bias is None else plain + bias


@dataclass(frozen=True, slots=True)
class UnpackedBlocks:
    """cuBLAS over numbers that our kernel unpacks, a panel of the weight's rows at a time."""

    panel: torch.Tensor  # uint8 [bytes], which all products share: one of them at a time uses it
    name: str = "unpacked"

    def __call__(
        self, states: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Implementation`."""
        panel = self.panel.view(states.dtype)
        height = min(_height(len(panel), weight.columns), weight.rows)
        out = states.new_empty((*states.shape[:-1], weight.rows))
        for first in range(0, weight.rows, height):
            rows = slice(first, min(first + height, weight.rows))
            data = weight.data[rows]
            numbers = panel[: len(data) * weight.columns].view(len(data), weight.columns)
            unpack_rows(weight.format, data, numbers)
            product = linear(states, numbers, None if bias is None else bias[rows])
            if len(data) == weight.rows:
                return product
            out[..., rows] = product
        return out


@dataclass(frozen=True, slots=True)
class MultipliedBlocks:
    """Our kernel over the blocks as they are."""

    tile: BlockTile
    splits: int
    scratch: Scratch

    @property
    def name(self) -> str:
        """Its name in the log: outputs x rows x columns of a tile, splits, warps."""
        tile = self.tile
        return f"blocks {tile.outputs}x{tile.rows}x{tile.columns} /{self.splits} w{tile.warps}"

    def __call__(
        self,
        states: torch.Tensor,
        weight: QuantisedWeight,
        bias: torch.Tensor | None,
        compile_only: bool = False,
    ) -> torch.Tensor:
        """See `Implementation`; `compile_only`: make the kernel of the call, compute nothing."""
        out = states.new_empty((len(states), weight.rows))
        parts = (self.tile, self.splits, self.scratch, compile_only)
        return block_product(weight.format, states, weight.data, bias, out, *parts)


def new_panel(weights: Iterable[QuantisedWeight], dtype: torch.dtype) -> torch.Tensor:
    """Room for the largest of some weights that are unpacked to `dtype`, or for a part of it."""
    held = list(weights)
    wanted = max(-(-weight.rows // _PANEL_ROWS) * _PANEL_ROWS * weight.columns for weight in held)
    most = max(GPU_PANEL_BYTES, *(_PANEL_ROWS * weight.columns * dtype.itemsize for weight in held))
    size_bytes = min(wanted * dtype.itemsize, most)
    return torch.empty(size_bytes, dtype=torch.uint8, device=held[0].data.device)


def _height(cells: int, columns: int) -> int:
    """Rows of a panel."""
    return cells // columns // _PANEL_ROWS * _PANEL_ROWS


def block_candidates(
    rows: int, weight: QuantisedWeight, library: Implementation, room: DeviceRoom, scratch: Scratch
) -> list[Implementation]:
    """Implementations for up to `rows` rows, the library's first."""
    padded = power_of_2(rows)
    return [
        library,
        *(
            MultipliedBlocks(tile, splits, scratch)
            for tile in _TILES
            if tile.rows in (padded, max(TENSOR_ROWS, padded))
            for splits in _splits(tile, rows, weight, room)
        ),
    ]


def _splits(tile: BlockTile, rows: int, weight: QuantisedWeight, room: DeviceRoom) -> list[int]:
    """In how many parts a tile's sum is computed: all at once, or so that all processors work."""
    if tile.rows < TENSOR_ROWS:
        return [1]
    along_rows, along_outputs = tile.count(rows, weight.rows)
    tiles = along_rows * along_outputs
    most = min(
        weight.columns // (_MIN_PIECES * tile.columns),
        SCRATCH_CELLS // (tiles * tile.rows * tile.outputs),
    )
    wanted = -(-_PROGRAMS_OF_A_PROCESSOR * room.processors // tiles)
    return sorted({1, max(1, min(wanted, most))})

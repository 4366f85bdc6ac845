"""The implementations of a product worth measuring, by its shape and the device's size."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton

from daemon.engine.cuda.product_implementations import (
    Implementation,
    Library,
    LightLibrary,
    Strips,
    Tiles,
    Vector,
)
from daemon.engine.cuda.triton.early import early
from daemon.engine.cuda.triton.skinny import Scratch, Strip, Tile
from daemon.engine.cuda.triton.tiles import power_of_2

LIBRARY = Library()
"""The default: it serves every number of rows, and others must beat it."""

MAX_ROWS = 256
"""Rows from which on products are bound by arithmetic, where none of our kernels competes."""
SCRATCH_CELLS = 8 << 20
"""Partial sums (float32) that a product may leave: 32 MiB."""
ALIGNED = 16
"""Rows of states and weights must begin at multiples of 16 elements, for wide loads."""

_STRIP_ROWS = 4
_LONGEST_STRIP = 32_768
_STRIP_OUTPUTS = (1, 2, 4)
_LOADS_OF_A_WARP = 2048
"""Numbers of a weight's row for each warp of a strip: 8 loads of 16 bytes by a thread."""
_MOST_OF_A_WARP = 4096
"""Numbers of all rows for each warp of a strip: what its registers hold."""
_TILES = (
    Tile(rows=16, outputs=32, depth=256, warps=4, stages=4),
    Tile(rows=16, outputs=64, depth=128, warps=4, stages=5),
    Tile(rows=16, outputs=64, depth=256, warps=4, stages=3),
    Tile(rows=16, outputs=128, depth=128, warps=8, stages=4),
    Tile(rows=32, outputs=32, depth=128, warps=4, stages=5),
    Tile(rows=32, outputs=64, depth=128, warps=4, stages=4),
    Tile(rows=32, outputs=128, depth=64, warps=4, stages=5),
    Tile(rows=32, outputs=128, depth=128, warps=8, stages=4),
    Tile(rows=32, outputs=256, depth=64, warps=8, stages=4),
    Tile(rows=64, outputs=64, depth=64, warps=4, stages=5),
    Tile(rows=64, outputs=64, depth=128, warps=4, stages=4),
    Tile(rows=64, outputs=128, depth=64, warps=4, stages=5),
    Tile(rows=64, outputs=128, depth=128, warps=8, stages=3),
    Tile(rows=64, outputs=256, depth=64, warps=8, stages=4),
    Tile(rows=128, outputs=64, depth=64, warps=4, stages=5),
    Tile(rows=128, outputs=128, depth=64, warps=8, stages=4),
    Tile(rows=128, outputs=256, depth=64, warps=8, stages=4),
    Tile(rows=256, outputs=64, depth=64, warps=8, stages=4),
    Tile(rows=256, outputs=128, depth=64, warps=8, stages=4),
)
_LEAST_BUSY = 0.6
"""Share of the processors that must have something to do."""
_RESERVED_BYTES = 1024
"""Shared memory of a processor that each program on it reserves."""
_MIN_PIECES = 4
"""Pieces of `depth` that a split must at least add up."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """The resources of a device."""

    processors: int
    shared_bytes: int  # of one program
    early: bool = False  # kernels may begin before the one in front of them has ended

    @staticmethod
    def of(device: torch.device) -> "DeviceRoom":
        """The resources as the driver reports them."""
        index = torch.cuda.current_device() if device.index is None else device.index
        said = triton.runtime.driver.active.utils.get_device_properties(index)
        return DeviceRoom(said["multiprocessor_count"], said["max_shared_mem"], early())


def candidates(
    rows: int, out_features: int, in_features: int, room: DeviceRoom, scratch: Scratch
) -> list[Implementation]:
    """Implementations for up to `rows` rows, at most `MAX_ROWS`, the library's first.

    A wide table: measurement does the rest.
    """
    ways: list[Implementation] = [LIBRARY]
    if torch.backends.cuda.is_built():
        ways.append(LightLibrary())
    if rows == 1:
        ways.append(Vector())
    if in_features % ALIGNED:
        return ways
    ways += [Strips(strip) for strip in _strips(rows, in_features, room)]
    for tile in (replace(tile, early=room.early) for tile in _TILES):
        if _suits(tile, rows, room):
            splits = _splits(tile, rows, out_features, in_features, room)
            ways += [Tiles(tile, count, scratch) for count in splits]
    return ways


def new_scratch(device: torch.device) -> Scratch:
    """Room for every candidate that `candidates` names."""
    return Scratch.of(SCRATCH_CELLS, SCRATCH_CELLS // (16 * 16), device)


def _strips(rows: int, in_features: int, room: DeviceRoom) -> Iterator[Strip]:
    """Strips for a few rows, as far as a thread's registers hold what it reads."""
    if rows > _STRIP_ROWS or in_features > _LONGEST_STRIP:
        return
    padded, depth = power_of_2(rows), power_of_2(in_features)
    warps = max(4, min(8, depth // _LOADS_OF_A_WARP))
    for outputs in _STRIP_OUTPUTS:
        if outputs * depth <= warps * _MOST_OF_A_WARP:
            yield Strip(padded, outputs, warps, room.early)


def _suits(tile: Tile, rows: int, room: DeviceRoom) -> bool:
    """Whether a tile fits the rows, the smallest that holds them, and the device's memory."""
    wanted = min(max(16, power_of_2(rows)), max(tile.rows for tile in _TILES))
    halves = wanted == 256 and tile.rows == 128
    return (tile.rows == wanted or halves) and tile.shared_bytes <= room.shared_bytes


def _splits(
    tile: Tile, rows: int, out_features: int, in_features: int, room: DeviceRoom
) -> list[int]:
    """In how many parts a tile's sum is computed: all at once, one or more on each processor."""
    along_rows, along_outputs = tile.count(rows, out_features)
    tiles = along_rows * along_outputs
    together = max(1, room.shared_bytes // (tile.shared_bytes + _RESERVED_BYTES))
    most = min(
        in_features // (_MIN_PIECES * tile.depth),
        SCRATCH_CELLS // (tiles * tile.rows * tile.outputs),
    )
    wanted = {max(1, min(room.processors * each // tiles, most)) for each in (1, together)}
    least = _LEAST_BUSY * room.processors
    return [splits for splits in sorted(wanted) if tiles * splits >= least]

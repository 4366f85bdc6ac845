"""How blocks are copied between the KV pool and the host pool: as they are, or packed.

What is started here goes to the stream that runs it (`daemon.engine.batch.streams`); nothing waits.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from daemon.engine.families import NONE, PACK, ByTorch
from daemon.engine.kv import host_int8 as packing
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.wire.columns import Column

STAGE_BYTES = {"cuda": 32 << 20, "cpu": 256 << 10}
"""Packed bytes that are made at a time: large copies for a GPU, a CPU's own caches for a CPU."""


class Copies(Protocol):
    """Copies of whole blocks; columns int32 [n]."""

    def out(self, blocks: Column, places: Column, fills: Column) -> None:
        """Device blocks, of which `fills` tokens are written, to places of the host pool."""

    def back(self, places: Column, blocks: Column) -> None:
        """Places of the host pool to device blocks."""


def copies_of(cache: PagedKV, pool: HostPool, by_torch: ByTorch = NONE) -> Copies:
    """How this pool's blocks are copied; of a GPU's kernels not those that torch computes."""
    if not pool.compressed:
        return PlainCopies(cache, pool)
    return PackedCopies(cache, pool, cache.raw.is_cuda and PACK not in by_torch)


class PlainCopies:
    """Blocks that lie side by side in both pools go as one copy."""

    def __init__(self, cache: PagedKV, pool: HostPool) -> None:
        self._device, self._host = cache.raw, pool.rows

    def out(self, blocks: Column, places: Column, fills: Column) -> None:
        """See `Copies`."""
        for place, block, count in runs(places, blocks):
            target = self._host[place : place + count]
            target.copy_(self._device[block : block + count], non_blocking=True)

    def back(self, places: Column, blocks: Column) -> None:
        """See `Copies`."""
        for place, block, count in runs(places, blocks):
            target = self._device[block : block + count]
            target.copy_(self._host[place : place + count], non_blocking=True)


class PackedCopies:
    """Blocks are packed on their device, so that the link carries bytes of the packed kind only.

    A stage for each direction holds some packed blocks in the order of their places: what lies side
    by side in the host pool goes as one copy, wherever it lies on the device.
    """

    def __init__(self, cache: PagedKV, pool: HostPool, by_kernels: bool) -> None:
        self._blocks, self._rows = cache.blocks, pool.rows
        device = cache.blocks.device
        size = max(1, STAGE_BYTES[device.type] // pool.block_bytes)
        self._stages = torch.empty(
            (2, min(size, pool.num_blocks), pool.block_bytes), dtype=torch.uint8, device=device
        )
        self._pack, self._unpack = packing.pack_blocks, packing.unpack_blocks
        if by_kernels:
            from daemon.engine.cuda import triton as kernels

            self._pack, self._unpack = kernels.pack_blocks, kernels.unpack_blocks

    def out(self, blocks: Column, places: Column, fills: Column) -> None:
        """See `Copies`."""
        for piece, stage in self._pieces(places, self._stages[0]):
            index, written = self._upload(blocks[piece]), self._upload(fills[piece])
            self._pack(self._blocks, index, written, stage)
            for place, row, count in runs(places[piece]):
                target = self._rows[place : place + count]
                target.copy_(stage[row : row + count], non_blocking=True)

    def back(self, places: Column, blocks: Column) -> None:
        """See `Copies`."""
        for piece, stage in self._pieces(places, self._stages[1]):
            for place, row, count in runs(places[piece]):
                target = stage[row : row + count]
                target.copy_(self._rows[place : place + count], non_blocking=True)
            self._unpack(stage, self._blocks, self._upload(blocks[piece]))

    def _pieces(self, places: Column, stage: torch.Tensor) -> Iterator[tuple[Column, torch.Tensor]]:
        """Which copies fit the stage at a time, by rising place, and their part of it."""
        order = np.argsort(places)
        for start in range(0, len(order), len(stage)):
            piece = order[start : start + len(stage)]
            yield piece, stage[: len(piece)]

    def _upload(self, column: Column) -> torch.Tensor:
        """The column as int64 on the device; from pinned memory, else the host would wait."""
        here = torch.from_numpy(column.astype(np.int64))
        if self._blocks.is_cuda:
            return here.pin_memory().to(self._blocks.device, non_blocking=True)
        return here


def runs(places: Column, blocks: Column | None = None) -> list[tuple[int, int, int]]:
    """Pairs (place, block) as stretches (first place, first block, count) that rise together.

    Without `blocks`, a place's block is its index.
    """
    if blocks is None:
        blocks = np.arange(len(places))
    order = np.argsort(places)
    places, blocks = places[order], blocks[order]
    breaks = (np.diff(places) != 1) | (np.diff(blocks) != 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1)) if len(places) else np.zeros(0, int)
    counts = np.diff(starts, append=len(places))
    columns = places[starts], blocks[starts], counts
    return list(zip(*(column.tolist() for column in columns), strict=True))

"""Copies of the same bytes of many rows: gathered, scattered, or from pool to pool.

Memory is given by address, since the other pool may be another process's (CUDA IPC): there is no
tensor for it here. `daemon.engine.transfer.rows` says what the same is in plain torch.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

NUM_PROGRAMS = 64
"""Half of a large GPU's multiprocessors: enough to fill any link, and most of the memory's rate."""
TILE_BYTES = 32 << 10
"""Bytes in flight per program: 64 programs have the two megabytes that HBM takes to fill."""
NUM_WARPS = 8

_WIDEST_BYTES = 16
_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


class Rows(NamedTuple):
    """Rows of bytes in memory that the current device reaches."""

    address: int  # of the first byte to copy of row 0
    pitch: int  # bytes from a row to the next
    chosen: torch.Tensor | None = None  # int64 [count]: which rows; None: the first ones, in order


def move_rows(source: Rows, target: Rows, size: int, count: int) -> None:
    """Copy `size` bytes of each of `count` rows, on the current stream of the current device.

    Rows that are read must not be written by the same call. At most one of the two may be without
    an index.
    """
    if count:
        grid = (min(NUM_PROGRAMS, count * -(-size // TILE_BYTES)),)
        arguments, constants = _arguments(source, target, size, count)
        _move[grid](*arguments, **constants, num_warps=NUM_WARPS)


def _arguments(
    source: Rows, target: Rows, size: int, count: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    indices = [rows.chosen for rows in (source, target) if rows.chosen is not None]
    if not indices:
        raise ValueError("rows that lie in order on both sides are a plain copy")
    word_bytes = math.gcd(source.address, target.address, source.pitch, target.pitch, size, 8)
    arguments = source.address, target.address, indices[0], indices[-1], count
    constants = {
        "SOURCE_PITCH": source.pitch // word_bytes,
        "TARGET_PITCH": target.pitch // word_bytes,
        "SIZE": size // word_bytes,
        "SOURCE_INDEXED": source.chosen is not None,
        "TARGET_INDEXED": target.chosen is not None,
        "WORD": _WORDS[word_bytes],
        "CELLS": TILE_BYTES // word_bytes,
        "ALIGNED": math.gcd(source.address, target.address, _WIDEST_BYTES),
    }
    return arguments, constants


@triton.jit(do_not_specialize=["count"])
def _move(
    source_address, target_address, source_index_ptr, target_index_ptr, count,
    SOURCE_PITCH: tl.constexpr, TARGET_PITCH: tl.constexpr, SIZE: tl.constexpr,
    SOURCE_INDEXED: tl.constexpr, TARGET_INDEXED: tl.constexpr,
    WORD: tl.constexpr, CELLS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Copy a program's share of the tiles of all rows; all sizes in words."""
    source = tl.multiple_of(source_address.to(tl.pointer_type(WORD)), ALIGNED)
    target = tl.multiple_of(target_address.to(tl.pointer_type(WORD)), ALIGNED)
    tiles: tl.constexpr = (SIZE + CELLS - 1) // CELLS
    for tile in tl.range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        row = tile // tiles
        cell = tile % tiles * CELLS + tl.arange(0, CELLS)
        read, written = row.to(tl.int64), row.to(tl.int64)
        if SOURCE_INDEXED:
            read = tl.load(source_index_ptr + row)
        if TARGET_INDEXED:
            written = tl.load(target_index_ptr + row)
        mask = cell < SIZE
        words = tl.load(source + read * SOURCE_PITCH + cell, mask=mask)
        tl.store(target + written * TARGET_PITCH + cell, words, mask=mask)

"""Tiles of a mixture's step: pairs of a token and one of its experts, sorted by expert.

All shapes follow from the number of tokens, and nothing is read on the host: a captured step holds
the kernels that sort. An expert's pairs keep their order and begin at a multiple of a tile's rows,
so that all rows of a tile have the same expert.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.tiles import power_of_2

TILE_ROWS = (16, 32, 64)
"""Rows of a tile of which tensor cores multiply; fewer where experts have few pairs."""
_CHUNK = 1024
"""Pairs that a program looks at together."""
_ALONE = 4
"""Experts for a pair, from which on most experts have no second one."""


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Pairs by expert: pair p is place p % k among the experts of token p // k.

    A tile has `rows` pairs, int32; those that are `num_pairs` are none.
    """

    pairs: torch.Tensor | None  # int32 [tiles * rows]; None: each pair is a tile, in their order
    experts: torch.Tensor  # of each tile, int32 or int64; -1: of none
    rows: int
    num_pairs: int

    @property
    def num_tiles(self) -> int:
        """Tiles, those without pairs too."""
        return len(self.experts)


def tiles_of(chosen: torch.Tensor, num_experts: int) -> ExpertTiles:
    """The tiles of `chosen` int64 [T, k], dense."""
    tokens, num_pairs = len(chosen), chosen.numel()
    if tokens == 1 or num_pairs * _ALONE <= num_experts:
        return ExpertTiles(None, chosen.view(-1), 1, num_pairs)
    rows = next((rows for rows in TILE_ROWS if rows * num_experts >= num_pairs), TILE_ROWS[-1])
    return sorted_tiles(chosen, num_experts, rows)


def sorted_tiles(chosen: torch.Tensor, num_experts: int, rows: int) -> ExpertTiles:
    """Tiles of `rows` pairs each, of `chosen` int64 [T, k], dense."""
    num_pairs, device = chosen.numel(), chosen.device
    num_tiles = most_tiles(num_pairs, num_experts, rows)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    pairs = torch.empty(num_tiles * rows, dtype=torch.int32, device=device)
    experts = torch.empty(num_tiles, dtype=torch.int32, device=device)
    if not num_pairs:
        return ExpertTiles(pairs, experts, rows, 0)
    _count[(num_experts,)](chosen, counts, num_pairs, CHUNK=_CHUNK, num_warps=4)
    _sort[(num_experts,)](
        chosen, counts, pairs, experts, num_pairs, num_tiles, num_experts,
        ROWS=rows, CHUNK=_CHUNK, EXPERTS=power_of_2(num_experts), num_warps=4,
    )  # fmt: skip
    return ExpertTiles(pairs, experts, rows, num_pairs)


def most_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    """Tiles of the routing that needs the most: the others of an expert's last tile are none."""
    begun = min(num_pairs, num_experts)
    return begun + (num_pairs - begun) // rows


@triton.jit(do_not_specialize=["num_pairs"])
def _count(chosen_ptr, counts_ptr, num_pairs, CHUNK: tl.constexpr):
    """The pairs of one expert."""
    expert = tl.program_id(0)
    found = tl.zeros([CHUNK], tl.int32)
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + tl.arange(0, CHUNK)
        chosen = tl.load(chosen_ptr + pair, mask=pair < num_pairs, other=-1)
        found += (chosen == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(found, 0))


@triton.jit(do_not_specialize=["num_pairs", "num_tiles", "num_experts"])
def _sort(
    chosen_ptr, counts_ptr, pairs_ptr, experts_ptr, num_pairs, num_tiles, num_experts,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The tiles of one expert; the last expert's program says that the rest have none."""
    expert = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    counts = tl.load(counts_ptr + every, mask=every < num_experts, other=0)
    tiles = (counts + (ROWS - 1)) // ROWS
    first = tl.sum(tl.where(every < expert, tiles, 0), 0)
    stop = first + tl.sum(tl.where(every == expert, tiles, 0), 0)
    end = tl.where(expert == num_experts - 1, num_tiles, stop)
    for begin in range(first, end, CHUNK):
        tile = begin + tl.arange(0, CHUNK)
        tl.store(experts_ptr + tile, tl.where(tile < stop, expert, -1), mask=tile < end)
    done = first * ROWS
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + tl.arange(0, CHUNK)
        chosen = tl.load(chosen_ptr + pair, mask=pair < num_pairs, other=-1)
        own = (chosen == expert).to(tl.int32)
        tl.store(pairs_ptr + done + tl.cumsum(own, 0) - 1, pair, mask=own > 0)
        done += tl.sum(own, 0)
    row = done + tl.arange(0, ROWS)
    tl.store(pairs_ptr + row, row * 0 + num_pairs, mask=row < stop * ROWS)

"""Sampling of a whole batch on the device: temperature, top-k, top-p, min-p, without sorting.

A token's depth is how far its logit lies below its row's best, over the temperature: its weight
is exp(-depth), and each filter is a greatest depth, ties included, as in
`daemon.engine.sampler.filters`. The token whose noise less its depth is greatest is sampled
(`daemon.engine.sampler.noise`). Rows are cut into chunks, so that one row keeps a whole GPU busy:

1. `_peaks`: each chunk's best logit and where it is. That is all that greedy rows need.
2. `_race`: each chunk's best score and its token, of rows without filters.
3. `_weigh`: where a row has filters, each chunk's sum of weights, how many tokens lie within each
   of a few depths, and their weight.
4. `_gather`: these tell a depth that surely holds all that the filters leave. The tokens within it
   are listed in order of their ids, if they are not more than the list has room for.
5. `choose_tokens` (a file of its own): one program per row picks the best chunk's token; or finds
   the exact cut, in the list or, without one, in the whole row, and the best score within it.

A row's token depends on its own logits and parameters: chunks are the same for all batches,
sums are taken in a fixed order, and no program reads what another row left.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.choose_tokens import (
    FIELDS,
    INVERSE,
    REACH,
    TOP_K,
    TOP_P,
    best_of,
    choose_tokens,
    drawable,
    filtered,
    key_of,
)
from daemon.engine.cuda.triton.race import chunk_winner, noise
from daemon.engine.cuda.triton.rows import row_stride

NUM_BOUNDS = 8
"""Depths that `_weigh` counts within: 1/4, 1, 9/4 ... 16, exact in float32."""

_WARPS = 8
_CHOOSING_WARPS = 16
"""Warps of the last pass: a row has one program there, whose warps alone hide memory's latency."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a row is cut up; the same for every batch of a model."""

    chunk: int = 4096  # tokens that a program of all but the last pass reads: whole blocks of noise
    tile: int = 4096  # tokens that the last pass reads at a time
    capacity: int = 16_384  # tokens that a list has room for


DEFAULT_SIZES = Sizes()


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    drawing: bool,
    filtering: bool,
    sizes: Sizes = DEFAULT_SIZES,
) -> torch.Tensor:
    """Sample a token of each row of `logits` [R, V], of any float type; rows may lie apart.

    `rows` float64 [R, 5] on the device: 1 / temperature (0: greedy), top_k (0: off), top_p,
    -log(min_p) (infinity: off), and the bits of the key of its noise. `drawing` says that some row
    is not greedy, `filtering` that some of those have filters.

    Returns int64 [2, R]: the tokens, and 1 for rows that have none, because their best logit is not
    a finite number (their token is 0). Greedy rows take the lowest of equally good tokens. Raises
    ValueError if the logits of a row do not lie together.
    """
    count, vocab = logits.shape
    drawn = logits.new_empty(2, count, dtype=torch.int64)
    if not count:
        return drawn
    chunks = -(-vocab // sizes.chunk)
    cut = {
        "VOCAB": vocab,
        "STRIDE": row_stride(logits),
        "CHUNK": sizes.chunk,
        "CHUNKS": chunks,
        "LANES": 1 << (chunks - 1).bit_length(),
        # One rounding for each operation: else a compiler may fuse them here and not there.
        "enable_fp_fusion": False,
    }
    grid = (chunks, count)
    # Each a piece of its own: one that began anywhere would compile the kernels anew.
    tops, sums, scores = (logits.new_empty(count, chunks, dtype=torch.float32) for _ in range(3))
    firsts, winners = (logits.new_empty(count, chunks, dtype=torch.int32) for _ in range(2))
    _peaks[grid](logits, tops, firsts, num_warps=_WARPS, **cut)
    within = _Within.none(logits)
    if drawing:
        _race[grid](logits, rows, tops, firsts, scores, winners, num_warps=_WARPS, **cut)
        if filtering:
            within = _Within.room(logits, chunks, sizes)
            bounded = {"BOUNDS": NUM_BOUNDS, "num_warps": _WARPS}
            _weigh[grid](logits, rows, tops, sums, within.counts, within.masses, **bounded, **cut)
            _gather[grid](
                logits, rows, tops, sums, within.counts, within.masses,
                within.lengths, within.values, within.ids,
                CAPACITY=sizes.capacity, **bounded, **cut,
            )  # fmt: skip
    choose_tokens[(count,)](
        logits, rows, tops, firsts, scores, winners, sums,
        within.lengths, within.values, within.ids, drawn, count,
        TILE=sizes.tile, CAPACITY=sizes.capacity, DRAWING=drawing, FILTERING=filtering,
        num_warps=_CHOOSING_WARPS, **cut,
    )  # fmt: skip
    return drawn


@dataclass(frozen=True, slots=True)
class _Within:
    """Buffers for the tokens near each row's best."""

    counts: torch.Tensor  # int32 [R, chunks, NUM_BOUNDS]: tokens within each depth
    masses: torch.Tensor  # float32 [R, chunks, NUM_BOUNDS]: their weight
    lengths: torch.Tensor  # int32 [R]: of the lists; -1: none, look at the whole row
    values: torch.Tensor  # [R, capacity]: listed logits
    ids: torch.Tensor  # int32 [R, capacity]: listed tokens

    @staticmethod
    def none(logits: torch.Tensor) -> "_Within":
        """For batches without filters: kernels get pointers that they do not follow."""
        return _Within(logits, logits, logits, logits, logits)

    @staticmethod
    def room(logits: torch.Tensor, chunks: int, sizes: Sizes) -> "_Within":
        """For all rows of a batch."""
        count = len(logits)
        return _Within(
            counts=logits.new_empty(count, chunks, NUM_BOUNDS, dtype=torch.int32),
            masses=logits.new_empty(count, chunks, NUM_BOUNDS, dtype=torch.float32),
            lengths=logits.new_empty(count, dtype=torch.int32),
            values=logits.new_empty(count, sizes.capacity),
            ids=logits.new_empty(count, sizes.capacity, dtype=torch.int32),
        )


@triton.jit
def _peaks(
    logits_ptr, tops_ptr, firsts_ptr,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """A chunk's best logit, and the lowest token that has it; NaN counts as infinite."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    source = logits_ptr + row * STRIDE + column
    logit = tl.load(source, mask=column < VOCAB, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == logit, logit, float("inf"))
    top = tl.max(logit, 0)
    tl.store(tops_ptr + row * CHUNKS + chunk, top)
    tl.store(firsts_ptr + row * CHUNKS + chunk, tl.min(tl.where(logit == top, column, VOCAB), 0))


@triton.jit
def _race(
    logits_ptr, rows_ptr, tops_ptr, firsts_ptr, scores_ptr, winners_ptr,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """A chunk's best score and its token, in rows without filters.

    Chunks in which none can be better than the token of the row's best logit look no further.
    """
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    field = rows_ptr + row * FIELDS
    lane = tl.arange(0, LANES)
    top = tl.load(tops_ptr + row * CHUNKS + lane, mask=lane < CHUNKS, other=float("-inf"))
    best = tl.max(top, 0)
    some = filtered(field)
    if drawable(field, best) & (some == 0):
        first = tl.min(tl.where(top == best, lane, LANES), 0)
        token = tl.load(firsts_ptr + row * CHUNKS + first).to(tl.int64)
        key = key_of(field)
        inverse = tl.load(field + INVERSE).to(tl.float32)
        score, winner = chunk_winner(
            logits_ptr + row * STRIDE, key, best, inverse, chunk, noise(key, token), VOCAB, CHUNK
        )
        tl.store(scores_ptr + row * CHUNKS + chunk, score)
        tl.store(winners_ptr + row * CHUNKS + chunk, winner)


@triton.jit
def _weigh(
    logits_ptr, rows_ptr, tops_ptr, sums_ptr, counts_ptr, masses_ptr,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr, BOUNDS: tl.constexpr,
):  # fmt: skip
    """In filtered rows, a chunk's sum of weights, and its tokens and their weight by depth."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    field = rows_ptr + row * FIELDS
    best = best_of(tops_ptr + row * CHUNKS, CHUNKS, LANES)
    if drawable(field, best) & filtered(field):
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        source = logits_ptr + row * STRIDE + column
        logit = tl.load(source, mask=column < VOCAB, other=float("-inf")).to(tl.float32)
        inverse = tl.load(field + INVERSE).to(tl.float32)
        depth = (best - logit) * inverse
        weight = tl.exp(-depth)
        cell = row * CHUNKS + chunk
        tl.store(sums_ptr + cell, tl.sum(weight, 0))
        nearest = (best - tl.load(tops_ptr + cell)) * inverse
        for bound in tl.static_range(BOUNDS):
            count = 0
            mass = 0.0
            # Most chunks have nothing near the best.
            if nearest <= (bound + 1) * (bound + 1) / 4:
                inside = depth <= (bound + 1) * (bound + 1) / 4
                count = tl.sum(inside.to(tl.int32), 0)
                mass = tl.sum(tl.where(inside, weight, 0.0), 0)
            tl.store(counts_ptr + cell * BOUNDS + bound, count)
            tl.store(masses_ptr + cell * BOUNDS + bound, mass)


@triton.jit
def _gather(
    logits_ptr, rows_ptr, tops_ptr, sums_ptr, counts_ptr, masses_ptr,
    lengths_ptr, values_ptr, ids_ptr,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr, BOUNDS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """A chunk's part of its row's list: the tokens within the first depth that is enough."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    field = rows_ptr + row * FIELDS
    best = best_of(tops_ptr + row * CHUNKS, CHUNKS, LANES)
    if drawable(field, best) & filtered(field):
        lane, bound = tl.arange(0, LANES), tl.arange(0, BOUNDS)
        cell = row * CHUNKS + lane
        cells = cell[:, None] * BOUNDS + bound[None, :]
        real = (lane < CHUNKS)[:, None]
        counts = tl.sum(tl.load(counts_ptr + cells, mask=real, other=0), 0)
        masses = tl.sum(tl.load(masses_ptr + cells, mask=real, other=0.0), 0)
        total = tl.sum(tl.load(sums_ptr + cell, mask=lane < CHUNKS, other=0.0), 0)
        top_k = tl.load(field + TOP_K).to(tl.float32)
        top_p = tl.load(field + TOP_P).to(tl.float32)
        depth = ((bound + 1) * (bound + 1)).to(tl.float32) * 0.25
        # With top-k, top-p only cuts what that leaves.
        wanted = tl.where(top_p < 1, top_p * total, float("inf"))
        wanted = tl.where(top_k > 0, top_k, wanted)
        enough = tl.where(top_k > 0, counts.to(tl.float32), masses) >= wanted
        # Of min-p's tokens alone, top-p could not tell how much weight top-k leaves.
        reach = tl.load(field + REACH).to(tl.float32)
        reach = tl.where((top_k > 0) & (top_p < 1), float("inf"), reach)
        enough = enough | (depth >= reach)
        chosen = tl.min(tl.where(enough, bound, BOUNDS), 0)
        length = tl.sum(tl.where(bound == chosen, counts, 0), 0)
        fits = (chosen < BOUNDS) & (length <= CAPACITY)
        if chunk == 0:
            tl.store(lengths_ptr + row, tl.where(fits, length, -1))
        listed = tl.where(fits, CHUNKS, 0)
        shares = tl.load(counts_ptr + cell * BOUNDS + chosen, mask=lane < listed, other=0)
        if tl.sum(tl.where(lane == chunk, shares, 0), 0) > 0:
            earlier = tl.where(lane < chunk, shares, 0)
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            source = logits_ptr + row * STRIDE + column
            logit = tl.load(source, mask=column < VOCAB, other=float("-inf"))
            inverse = tl.load(field + INVERSE).to(tl.float32)
            deepest = ((chosen + 1) * (chosen + 1)).to(tl.float32) * 0.25
            inside = (best - logit.to(tl.float32)) * inverse <= deepest
            place = row * CAPACITY + tl.sum(earlier, 0) + tl.cumsum(inside.to(tl.int32), 0) - 1
            tl.store(values_ptr + place, logit, mask=inside)
            tl.store(ids_ptr + place, column, mask=inside)

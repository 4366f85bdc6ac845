"""The last pass of sampling: a program per row finds the exact cut of its filters and the token.

Depths are not negative, so the bits of a float32 depth, read as an integer, order like the depths
themselves. A cut is the smallest such integer at which enough tokens, or enough weight, is
reached: its two bits at a time, from the highest, each by one pass over the tokens in question.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import triton
import triton.language as tl

from daemon.engine.cuda.triton.race import noise

FIELDS = tl.constexpr(5)
"""Numbers that a row of parameters has: these, in this order."""
INVERSE = tl.constexpr(0)
TOP_K = tl.constexpr(1)
TOP_P = tl.constexpr(2)
REACH = tl.constexpr(3)
KEY = tl.constexpr(4)
"""The bits of a float64 that is never computed with."""


@triton.jit
def best_of(tops, CHUNKS: tl.constexpr, LANES: tl.constexpr):
    """The best logit of a row whose chunks' best lie at `tops`."""
    lane = tl.arange(0, LANES)
    return tl.max(tl.load(tops + lane, mask=lane < CHUNKS, other=float("-inf")), 0)


@triton.jit
def drawable(field, best):
    """Whether a row is sampled at random: not greedy, and its best logit is a number."""
    return (tl.load(field + INVERSE) > 0) & (best > float("-inf")) & (best < float("inf"))


@triton.jit
def filtered(field):
    """Whether a row has filters."""
    some = (tl.load(field + TOP_K) > 0) | (tl.load(field + TOP_P) < 1)
    return some | (tl.load(field + REACH) < float("inf"))


@triton.jit
def key_of(field):
    """The key that a row's noise is made from."""
    return tl.load(field + KEY).to(tl.uint64, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def choose_tokens(
    logits_ptr, rows_ptr, tops_ptr, firsts_ptr, scores_ptr, winners_ptr, sums_ptr, lengths_ptr,
    values_ptr, ids_ptr, drawn_ptr, num_rows,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr, TILE: tl.constexpr, CAPACITY: tl.constexpr,
    DRAWING: tl.constexpr, FILTERING: tl.constexpr,
):  # fmt: skip
    """One row's token, and whether it has none."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    chunk_mask = lane < CHUNKS
    cells = row * CHUNKS + lane
    top = tl.load(tops_ptr + cells, mask=chunk_mask, other=float("-inf"))
    best = tl.max(top, 0)
    token = tl.load(firsts_ptr + row * CHUNKS + tl.min(tl.where(top == best, lane, LANES), 0))
    if DRAWING:
        field = rows_ptr + row * FIELDS
        if drawable(field, best):
            some = filtered(field)
            if some:
                if FILTERING:
                    sums = tl.load(sums_ptr + cells, mask=chunk_mask, other=0.0)
                    source = logits_ptr + row * STRIDE
                    length = tl.load(lengths_ptr + row)
                    listed = length >= 0
                    end = tl.full([], VOCAB, tl.int32)
                    if listed:
                        source = values_ptr + row * CAPACITY
                        end = length
                    inverse = tl.load(field + INVERSE).to(tl.float32)
                    cut = cut_of(source, end, field, best, inverse, tl.sum(sums, 0), TILE)
                    token = _winner(
                        source, ids_ptr + row * CAPACITY, length, end, key_of(field), best,
                        inverse, cut, VOCAB, TILE,
                    )  # fmt: skip
            else:
                score = tl.load(scores_ptr + cells, mask=chunk_mask, other=float("-inf"))
                chunk = tl.min(tl.where(score == tl.max(score, 0), lane, LANES), 0)
                token = tl.load(winners_ptr + row * CHUNKS + chunk)
    fine = (best > float("-inf")) & (best < float("inf"))
    tl.store(drawn_ptr + row, tl.where(fine, token, 0).to(tl.int64))
    tl.store(drawn_ptr + num_rows + row, tl.where(fine, 0, 1).to(tl.int64))


@triton.jit
def cut_of(source, end, field, best, inverse, total, TILE: tl.constexpr):
    """The greatest depth, as bits, that a row's filters leave of the `end` logits at `source`.

    `total` float32: the weight of the row's whole vocabulary.
    """
    top_k = tl.load(field + TOP_K).to(tl.float32)
    top_p = tl.load(field + TOP_P).to(tl.float32)
    cut = tl.load(field + REACH).to(tl.float32).to(tl.uint32, bitcast=True)
    limit = tl.full([], 0xFFFFFFFF, tl.uint32)
    if top_k > 0:
        limit = _reach(source, end, best, inverse, limit, top_k, True, TILE)
        total = _mass(source, end, best, inverse, limit, TILE).to(tl.float32)
    if top_p < 1:
        limit = tl.minimum(
            limit, _reach(source, end, best, inverse, limit, top_p * total, False, TILE)
        )
    return tl.minimum(cut, limit)


@triton.jit
def _depths(source, column, end, best, inverse):
    """How deep the logits at `column` [TILE] lie; infinitely from `end` on."""
    logit = tl.load(source + column, mask=column < end, other=float("-inf"))
    return tl.abs((best - logit.to(tl.float32)) * inverse)


@triton.jit
def _kept(depth, cut):
    """The weights of depths [TILE], 0 for those below the cut (bits of a depth)."""
    return tl.where(depth.to(tl.uint32, bitcast=True) <= cut, tl.exp(-depth), 0.0)


@triton.jit
def _reach(
    source, end, best, inverse, limit, target, COUNT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The bits of the least depth within which `target` tokens, or as much weight, is reached.

    Tokens below `limit` weigh nothing. If nothing reaches it: the greatest integer.
    """
    found = tl.full([], 0, tl.uint32)
    step = tl.full([], 1 << 30, tl.uint32)
    for _digit in range(16):
        sum_1 = tl.zeros([TILE], tl.float32)
        sum_2 = tl.zeros([TILE], tl.float32)
        sum_3 = tl.zeros([TILE], tl.float32)
        for first in range(0, end, TILE):
            column = first + tl.arange(0, TILE)
            depth = _depths(source, column, end, best, inverse)
            bits = depth.to(tl.uint32, bitcast=True)
            amount = tl.where(column < end, 1.0, 0.0) if COUNT else _kept(depth, limit)
            sum_1 += tl.where(bits < found + step, amount, 0.0)
            sum_2 += tl.where(bits < found + 2 * step, amount, 0.0)
            sum_3 += tl.where(bits < found + 3 * step, amount, 0.0)
        short = (tl.sum(sum_1, 0) < target).to(tl.uint32)
        short += (tl.sum(sum_2, 0) < target).to(tl.uint32)
        short += (tl.sum(sum_3, 0) < target).to(tl.uint32)
        found += short * step
        step = step >> 2
    return found


@triton.jit
def _mass(source, end, best, inverse, cut, TILE: tl.constexpr):
    """The weight down to a cut, float64."""
    mass = tl.full([], 0.0, tl.float64)
    for first in range(0, end, TILE):
        depth = _depths(source, first + tl.arange(0, TILE), end, best, inverse)
        mass += tl.sum(_kept(depth, cut), 0).to(tl.float64)
    return mass


@triton.jit
def _winner(
    source, ids, length, end, key, best, inverse, cut, VOCAB: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The token of the best score among `end` logits at `source` that lie within a cut.

    Their tokens are the `length` at `ids`; their places, if it is negative.
    """
    score = tl.full([], float("-inf"), tl.float32)
    winner = tl.full([], VOCAB, tl.int64)
    for first in range(0, end, TILE):
        column = first + tl.arange(0, TILE)
        depth = _depths(source, column, end, best, inverse)
        kept = depth.to(tl.uint32, bitcast=True) <= cut
        token = tl.load(ids + column, mask=column < length, other=0)
        token = tl.where(length < 0, column, token).to(tl.int64)
        scores = tl.where(kept, noise(key, token) - depth, float("-inf"))
        here = tl.max(scores, 0)
        place = tl.min(tl.where(scores == here, token, VOCAB), 0)
        better = (here > score) | ((here == score) & (place < winner))
        winner = tl.where(better, place, winner)
        score = tl.maximum(score, here)
    return winner.to(tl.int32)

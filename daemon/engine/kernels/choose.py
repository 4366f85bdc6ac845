"""The last pass of a draw: one program a row finds the exact cut of its filters, and draws.

Depths are not negative, so the bits of a float32 depth, read as an integer, order like the depths
themselves. A cut is the smallest such integer at which enough tokens, or enough weight, is
reached: its two bits at a time, from the highest, each by one pass over the tokens in question.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import triton
import triton.language as tl

FIELDS = tl.constexpr(5)
"""Numbers that a row of parameters has: these, in this order."""
INVERSE = tl.constexpr(0)
TOP_K = tl.constexpr(1)
TOP_P = tl.constexpr(2)
REACH = tl.constexpr(3)
UNIFORM = tl.constexpr(4)


@triton.jit
def best_of(tops, CHUNKS: tl.constexpr, LANES: tl.constexpr):
    """The best logit of a row whose chunks' best lie at `tops`."""
    lane = tl.arange(0, LANES)
    return tl.max(tl.load(tops + lane, mask=lane < CHUNKS, other=float("-inf")), 0)


@triton.jit
def drawable(field, best):
    """Whether a row is one to be drawn: not greedy, and its best logit is a number."""
    return (tl.load(field + INVERSE) > 0) & (best > float("-inf")) & (best < float("inf"))


@triton.jit
def filtered(field):
    """Whether a row has filters."""
    some = (tl.load(field + TOP_K) > 0) | (tl.load(field + TOP_P) < 1)
    return some | (tl.load(field + REACH) < float("inf"))


@triton.jit(do_not_specialize=["num_rows"])
def choose_tokens(
    logits_ptr, rows_ptr, tops_ptr, firsts_ptr, sums_ptr, lengths_ptr, values_ptr, ids_ptr,
    drawn_ptr, num_rows,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LANES: tl.constexpr, TILE: tl.constexpr, CAPACITY: tl.constexpr,
    DRAWING: tl.constexpr, FILTERING: tl.constexpr,
):  # fmt: skip
    """One row's token, and whether it has none."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    chunk_mask = lane < CHUNKS
    top = tl.load(tops_ptr + row * CHUNKS + lane, mask=chunk_mask, other=float("-inf"))
    best = tl.max(top, 0)
    token = tl.load(firsts_ptr + row * CHUNKS + tl.min(tl.where(top == best, lane, LANES), 0))
    if DRAWING:
        field = rows_ptr + row * FIELDS
        if drawable(field, best):
            inverse = tl.load(field + INVERSE).to(tl.float32)
            uniform = tl.load(field + UNIFORM)
            sums = tl.load(sums_ptr + row * CHUNKS + lane, mask=chunk_mask, other=0.0)
            # Without filters the chunk is known from the chunks' sums, and all of it may be drawn.
            masses = sums.to(tl.float64)
            target = uniform * tl.sum(masses, 0)
            chunk, before = _passes(masses, target, LANES)
            target -= before
            source = logits_ptr + row * STRIDE
            begin = chunk * CHUNK
            end = tl.minimum(begin + CHUNK, VOCAB)
            cut = tl.full([], 0xFFFFFFFF, tl.uint32)
            length = tl.full([], -1, tl.int32)
            if FILTERING:
                some = filtered(field)
                if some:
                    begin = 0 * begin
                    end = begin + VOCAB
                    length = tl.load(lengths_ptr + row)
                    if length >= 0:
                        source = values_ptr + row * CAPACITY
                        end = length
                    cut = cut_of(source, end, field, best, inverse, tl.sum(sums, 0), TILE)
                    target = uniform * _mass(source, end, best, inverse, cut, TILE)
            token = _walk(source, begin, end, best, inverse, cut, target, TILE)
            if FILTERING:
                listed = length >= 0
                if listed:
                    token = tl.load(ids_ptr + row * CAPACITY + token)
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
    return (best - logit.to(tl.float32)) * inverse


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
        one = tl.zeros([TILE], tl.float32)
        two = tl.zeros([TILE], tl.float32)
        three = tl.zeros([TILE], tl.float32)
        for first in range(0, end, TILE):
            column = first + tl.arange(0, TILE)
            depth = _depths(source, column, end, best, inverse)
            bits = depth.to(tl.uint32, bitcast=True)
            amount = tl.where(column < end, 1.0, 0.0) if COUNT else _kept(depth, limit)
            one += tl.where(bits < found + step, amount, 0.0)
            two += tl.where(bits < found + 2 * step, amount, 0.0)
            three += tl.where(bits < found + 3 * step, amount, 0.0)
        short = (tl.sum(one, 0) < target).to(tl.uint32)
        short += (tl.sum(two, 0) < target).to(tl.uint32)
        short += (tl.sum(three, 0) < target).to(tl.uint32)
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
def _walk(source, begin, end, best, inverse, cut, target, TILE: tl.constexpr):
    """Where the running sum of weights down to a cut, from `begin` on, passes `target`."""
    running = tl.full([], 0.0, tl.float64)
    before = running
    place = begin + tl.full([], 0, tl.int32)
    for first in range(begin, end, TILE):
        mass = tl.sum(
            _kept(_depths(source, first + tl.arange(0, TILE), end, best, inverse), cut), 0
        )
        here = (running <= target) & (mass > 0)
        place = tl.where(here, first, place)
        before = tl.where(here, running, before)
        running += mass.to(tl.float64)
    depth = _depths(source, place + tl.arange(0, TILE), end, best, inverse)
    inside, _ = _passes(_kept(depth, cut).to(tl.float64), target - before, TILE)
    return place + inside


@triton.jit
def _passes(masses, target, LANES: tl.constexpr):
    """The first of `masses` [LANES] at which their running sum passes `target`, and the sum before.

    Never one of no mass: if rounding leaves the target unpassed, it is the last that has some.
    """
    lane = tl.arange(0, LANES)
    some = masses > 0
    past = some & (tl.cumsum(masses, 0) > target)
    last = tl.max(tl.where(some, lane, 0), 0)
    index = tl.minimum(tl.min(tl.where(past, lane, LANES), 0), last)
    return index, tl.sum(tl.where(lane < index, masses, 0.0), 0)

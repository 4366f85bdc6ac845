"""The innermost loops of attention over float32 pages, as vector code for numba's functions."""

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.vectors import FLOAT, I64, Writer, lanes

POSITIONS = 16
"""Positions whose scores are computed together."""

HEAD_DIMS = (64, 128, 256, 512)
"""Sizes of heads that the loops are compiled for."""

_LANES = 16
_TURNS = 2
"""Sums that are added to in alternation: each addition waits for the one before."""


@intrinsic(prefer_literal=True)
def score_rows(_typing: Any, head_dim: Any, query: Any, rows: Any, scores: Any) -> Any:
    """float32 [POSITIONS] at `scores`: products of a query and rows of keys.

    `rows` is the address of as many addresses (int64). For numba code.
    """
    parts = head_dim.literal_value // _LANES

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, query_at, rows_at, scores_at = values
        vector, size_bytes = lanes(FLOAT, _LANES), 4 * _LANES
        numbers = [writer.load(vector, query_at, size_bytes * part) for part in range(parts)]
        sums = []
        for position in range(POSITIONS):
            row = writer.load(I64, rows_at, 8 * position)
            total = writer.number(vector, 0.0)
            for part, of_query in enumerate(numbers):
                key = writer.load(vector, row, size_bytes * part)
                total = writer.muladd(of_query, key, total)
            sums.append(total)
        writer.store(writer.totals(sums), scores_at)
        return context.get_dummy_value()

    return types.void(head_dim, *(types.int64,) * 3), generate


@intrinsic
def soften(_typing: Any, scores: Any, count: Any, scale: Any) -> Any:
    """Turn `count` scores, float32 at an address, into weights that sum to 1.

    For numba code that is compiled without reassociation.

    A weight is e ** (score * scale), over all of them. Scores lie in whole runs of `POSITIONS`:
    those behind the last are no larger than the largest before, and become 0.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        scores_at, count, scale = values
        vector, integers = lanes(FLOAT, POSITIONS), lanes(I64, POSITIONS)
        more = builder.add(count, writer.number(I64, POSITIONS - 1))
        runs = builder.udiv(more, writer.number(I64, POSITIONS))
        most = writer.variable(writer.number(vector, -math.inf))
        with writer.loop(runs) as index:
            here = writer.load(vector, writer.step(scores_at, index, 4 * POSITIONS))
            before = builder.load(most)
            builder.store(
                builder.select(builder.fcmp_ordered(">", here, before), here, before), most
            )
        largest = writer.splat(writer.largest(builder.load(most)), POSITIONS)
        by, total = writer.splat(scale, POSITIONS), writer.variable(writer.number(vector, 0.0))
        places = ir.Constant(integers, [*range(POSITIONS)])
        with writer.loop(runs) as index:
            at = writer.step(scores_at, index, 4 * POSITIONS)
            weights = writer.exp(builder.fmul(builder.fsub(writer.load(vector, at), largest), by))
            first = builder.mul(index, writer.number(I64, POSITIONS))
            left = writer.splat(builder.sub(count, first), POSITIONS)
            counts = builder.icmp_signed("<", places, left)
            weights = builder.select(counts, weights, writer.number(vector, 0.0))
            writer.store(weights, at)
            builder.store(builder.fadd(builder.load(total), weights), total)
        unit = writer.number(FLOAT, 1.0)
        norm = writer.splat(builder.fdiv(unit, writer.total(builder.load(total))), POSITIONS)
        with writer.loop(runs) as index:
            at = writer.step(scores_at, index, 4 * POSITIONS)
            writer.store(builder.fmul(writer.load(vector, at), norm), at)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic(prefer_literal=True)
def weigh_rows(
    _typing: Any, head_dim: Any, rows: Any, shift: Any, weights: Any, count: Any, output: Any
) -> Any:
    """Adds to float32 [head_dim] at `output` the sum of `count` rows of values by their weights.

    `rows` is the address of as many addresses (int64), from which the values lie `shift` bytes
    further; `weights` is that of float32. For numba code.
    """
    parts = head_dim.literal_value // _LANES

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, rows_at, shift, weights_at, count, output_at = values
        vector, size_bytes = lanes(FLOAT, _LANES), 4 * _LANES
        zero = writer.number(vector, 0.0)
        before = [writer.load(vector, output_at, size_bytes * part) for part in range(parts)]
        firsts = [before, *[[zero] * parts] * (_TURNS - 1)]
        totals = [[writer.variable(first) for first in of_turn] for of_turn in firsts]

        def add(turn: int, index: Any) -> None:
            row = builder.add(writer.load(I64, writer.step(rows_at, index, 8)), shift)
            weight = writer.load(FLOAT, writer.step(weights_at, index, 4))
            by = writer.splat(weight, _LANES)
            for part, total in enumerate(totals[turn]):
                writer.add_to(total, writer.load(vector, row, size_bytes * part), by)

        turns = builder.udiv(count, writer.number(I64, _TURNS))
        with writer.loop(turns) as index:
            first = builder.mul(index, writer.number(I64, _TURNS))
            for turn in range(_TURNS):
                add(turn, builder.add(first, writer.number(I64, turn)))
        done = builder.mul(turns, writer.number(I64, _TURNS))
        with writer.loop(builder.sub(count, done)) as index:
            add(0, builder.add(done, index))
        for part, places in enumerate(zip(*totals, strict=True)):
            even, odd = (builder.load(place) for place in places)
            writer.store(builder.fadd(even, odd), output_at, size_bytes * part)
        return context.get_dummy_value()

    return types.void(head_dim, *(types.int64,) * 5), generate

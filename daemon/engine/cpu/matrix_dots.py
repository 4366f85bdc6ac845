"""Products of rounded states by the processor's matrix tiles (AMX), where it has them.

A tile of codes is 16 columns by up to 64 numbers as they lie in memory, a tile of states is a
record of 16 tokens; one instruction multiplies both into 16 x 16 sums.
"""

from functools import cache
from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.blocks import CHUNK_LEN
from daemon.engine.cpu.dots import form_of
from daemon.engine.cpu.integer_dots import Record, add_scaled
from daemon.engine.cpu.vectors import FLOAT, I8, I16, I32, I64, Value, Writer, lanes, target_has

MATRIX = 16
"""Columns, and tokens, of a tile of sums."""

_SUMS, _CODES, _STATES = range(3)  # the tiles
_ROW_BYTES = 64
_CONFIG_BYTES = 64
_COLUMN_BYTES_AT, _ROWS_AT = 16, 48


@cache
def have_matrices() -> bool:
    """Whether this process may use the processor's matrices; Linux wants to be asked."""
    here = target_has("amx-tile") and target_has("amx-int8")
    return here and bool(torch.cpu._init_amx())


def has_matrices(writer: Writer) -> bool:
    """Whether the processor has the instructions."""
    return writer.has("amx-tile") and writer.has("amx-int8")


def _pointer(writer: Writer, address: Value) -> Value:
    return writer.builder.inttoptr(address, I8.as_pointer())


@intrinsic(prefer_literal=True)
def begin_matrices(_typing: Any, form: Any, config: Any, before: Any) -> Any:
    """Set the tiles up, of 64 bytes at `config`; what they were goes to `before`. For numba code.

    torch's library uses the same tiles and may go by what it has set itself.
    """
    run_len = reader(form_of(form)).scale_len
    sizes = {_SUMS: (MATRIX, _ROW_BYTES), _CODES: (MATRIX, run_len)}
    sizes[_STATES] = run_len // 4, _ROW_BYTES

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, config_at, before_at = values
        if has_matrices(writer):
            writer.store(writer.number(lanes(I8, _CONFIG_BYTES), 0), config_at)
            writer.store(writer.number(I8, 1), config_at)
            for tile, (rows, row_bytes) in sizes.items():
                at = _COLUMN_BYTES_AT + 2 * tile
                writer.store(writer.number(I16, row_bytes), config_at, at)
                writer.store(writer.number(I8, rows), config_at, _ROWS_AT + tile)
            nothing = ir.VoidType()
            writer.call("llvm.x86.sttilecfg", nothing, _pointer(writer, before_at))
            writer.call("llvm.x86.ldtilecfg", nothing, _pointer(writer, config_at))
        return context.get_dummy_value()

    return types.void(form, types.int64, types.int64), generate


@intrinsic
def end_matrices(_typing: Any, _before: Any) -> Any:
    """Set the tiles up as they were before. For numba code."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        if has_matrices(writer):
            writer.call("llvm.x86.ldtilecfg", ir.VoidType(), _pointer(writer, values[0]))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic(prefer_literal=True)
def matrix_codes(
    _typing: Any,
    form: Any,
    codes: Any,
    scales: Any,
    row_len: Any,
    states: Any,
    width: Any,
    start: Any,
    count: Any,
    products: Any,
    sums: Any,
) -> Any:
    """As `tile_codes`, of `MATRIX` columns and a record of as many tokens. For numba code.

    At `products` is room for two tiles of sums.
    """
    kind = reader(form_of(form))
    runs = CHUNK_LEN // kind.scale_len

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        if not has_matrices(writer):
            return context.get_dummy_value()
        _, codes_at, pairs_at, row_len, states_at, width, start, count, products_at, sums_at = (
            values
        )
        vector, integers = lanes(FLOAT, MATRIX), lanes(I32, MATRIX)
        record = Record(writer, MATRIX, states_at, width, start)
        pair_bytes = builder.udiv(row_len, writer.number(I64, kind.scale_len // 8))
        offsets = [builder.mul(pair_bytes, writer.number(I64, row)) for row in range(MATRIX)]
        totals = [
            writer.variable(writer.load(vector, sums_at, _ROW_BYTES * row)) for row in range(MATRIX)
        ]
        chunks = builder.udiv(count, writer.number(I64, CHUNK_LEN))

        def multiply(index: Value, run: int, room: Value) -> None:
            codes = writer.at(writer.step(codes_at, index, CHUNK_LEN), kind.scale_len * run)
            states = writer.at(record.codes(index), kind.scale_len * MATRIX * run)
            _multiply(writer, codes, row_len, states, room)

        multiply(writer.number(I64, 0), 0, products_at)
        with writer.loop(chunks) as index:
            scale, added = record.scales(index), record.sums(index, runs)
            pairs = writer.step(pairs_at, index, 8 * runs)
            after = _after(writer, index, chunks)
            for run in range(runs):
                here, other = _rooms(writer, products_at, index, run, runs)
                # The matrices multiply what comes next while these sums are scaled.
                multiply(index if run + 1 < runs else after, (run + 1) % runs, other)
                for row, total in enumerate(totals):
                    pair = writer.at(builder.add(pairs, offsets[row]), 8 * run)
                    dots = writer.load(integers, here, _ROW_BYTES * row)
                    add_scaled(writer, total, dots, scale, added[run], pair)
        for row, total in enumerate(totals):
            writer.store(builder.load(total), sums_at, _ROW_BYTES * row)
        return context.get_dummy_value()

    return types.void(form, *(types.int64,) * 9), generate


def _after(writer: Writer, index: Value, count: Value) -> Value:
    """The next index, of so many; the last one's is the last."""
    builder, one = writer.builder, writer.number(I64, 1)
    last = builder.sub(count, one)
    more = builder.icmp_unsigned("<", index, last)
    return builder.select(more, builder.add(index, one), last)


def _rooms(
    writer: Writer, products: Value, index: Value, run: int, runs: int
) -> tuple[Value, Value]:
    """Where the sums of a run are, and where the next one's go: they take turns."""
    builder, size = writer.builder, writer.number(I64, MATRIX * _ROW_BYTES)
    turn = writer.number(I64, run % 2)
    if runs == 1:
        turn = builder.and_(index, writer.number(I64, 1))
    shift = builder.mul(turn, size)
    return builder.add(products, shift), builder.add(products, builder.sub(size, shift))


def _multiply(writer: Writer, codes: Value, row_len: Value, states: Value, products: Value) -> None:
    """One tile of codes by one of states, written to `products`."""
    nothing = ir.VoidType()
    sums_tile, codes_tile, states_tile = (
        writer.number(I8, tile) for tile in (_SUMS, _CODES, _STATES)
    )
    stride = writer.number(I64, _ROW_BYTES)
    load = "llvm.x86.tileloadd64"
    writer.call("llvm.x86.tilezero", nothing, sums_tile)
    writer.call(load, nothing, codes_tile, _pointer(writer, codes), row_len)
    writer.call(load, nothing, states_tile, _pointer(writer, states), stride)
    writer.call("llvm.x86.tdpbusd", nothing, sums_tile, codes_tile, states_tile)
    store = "llvm.x86.tilestored64"
    writer.call(store, nothing, sums_tile, _pointer(writer, products), stride)

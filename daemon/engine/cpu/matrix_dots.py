"""Products of bfloat16 by the processor's matrix tiles (AMX), where it has them.

A tile of weights is 16 rows of 32 numbers, a tile of states the same numbers of 16 tokens, pair by
pair; one instruction multiplies both and adds to 16 x 16 sums in float32. There are four tiles of
sums, so that each tile that is loaded is multiplied twice.

A record of 16 tokens of K numbers holds bfloat16 [K / 2, 16, 2].
"""

from functools import cache
from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.dots import narrowed
from daemon.engine.cpu.vectors import FLOAT, I8, I16, I32, I64, Value, Writer, lanes, target_has

MATRIX = 16
"""Rows of a tile, and tokens of a record."""
COLUMNS = 2 * MATRIX
"""Rows of weights that are multiplied together."""

_PAIRS_LEN = 32
_ROW_BYTES = 2 * _PAIRS_LEN
_TILE_BYTES = MATRIX * _ROW_BYTES
_SUMS, _WEIGHTS, _STATES = 0, 4, 6  # the first tiles of each kind
_NUM_TILES = 8
_CONFIG_BYTES = 64
_COLUMN_BYTES_AT, _ROWS_AT = 16, 48
_FEATURES = "amx-tile", "amx-bf16"


@cache
def have_matrices() -> bool:
    """Whether this process may use the processor's matrices; Linux must be asked first."""
    return all(target_has(feature) for feature in _FEATURES) and bool(torch.cpu._init_amx())


def _has_matrices(writer: Writer) -> bool:
    """Whether the processor has the instructions."""
    return all(writer.has(feature) for feature in _FEATURES)


def _call(writer: Writer, name: str, *arguments: Value) -> None:
    writer.call(f"llvm.x86.{name}", ir.VoidType(), *arguments)


def _pointer(writer: Writer, address: Value) -> Value:
    return writer.builder.inttoptr(address, I8.as_pointer())


@intrinsic
def begin_matrices(_typing: Any, config: Any, before: Any) -> Any:
    """Set the tiles up, of 64 bytes at `config`; what they were goes to `before`. For numba code.

    torch's library uses the same tiles and may go by what it has set itself.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        config_at, before_at = values
        if _has_matrices(writer):
            writer.store(writer.number(lanes(I8, _CONFIG_BYTES), 0), config_at)
            writer.store(writer.number(I8, 1), config_at)
            for tile in range(_NUM_TILES):
                row_bytes, rows = writer.number(I16, _ROW_BYTES), writer.number(I8, MATRIX)
                writer.store(row_bytes, config_at, _COLUMN_BYTES_AT + 2 * tile)
                writer.store(rows, config_at, _ROWS_AT + tile)
            _call(writer, "sttilecfg", _pointer(writer, before_at))
            _call(writer, "ldtilecfg", _pointer(writer, config_at))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def end_matrices(_typing: Any, _before: Any) -> Any:
    """Set the tiles up as they were before. For numba code."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        if _has_matrices(writer):
            _call(writer, "ldtilecfg", _pointer(writer, values[0]))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def pack_rows(_typing: Any, tokens: Any, count: Any, record: Any) -> Any:
    """Rounds `count` float32 numbers of `MATRIX` tokens into a record. For numba code.

    `tokens` is the address of as many addresses (int64).
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        tokens_at, count, record_at = values
        tokens = [writer.load(I64, tokens_at, 8 * token) for token in range(MATRIX)]
        with writer.loop(builder.udiv(count, writer.number(I64, _PAIRS_LEN))) as index:
            rows = []
            for token in tokens:
                here = writer.step(token, index, 4 * _PAIRS_LEN)
                halves = [
                    narrowed(writer, writer.load(lanes(FLOAT, MATRIX), here, 4 * MATRIX * half))
                    for half in range(2)
                ]
                rows.append(builder.bitcast(writer.concat(*halves), lanes(I32, MATRIX)))
            there = writer.step(record_at, index, _TILE_BYTES)
            for pair, numbers in enumerate(writer.transposed(rows)):
                writer.store(numbers, there, _ROW_BYTES * pair)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 3), generate


@intrinsic(prefer_literal=True)
def matrix_pairs(
    _typing: Any,
    num_records: Any,
    weights: Any,
    row_bytes: Any,
    states: Any,
    record_bytes: Any,
    count: Any,
    sums: Any,
) -> Any:
    """Adds to float32 [records, COLUMNS, MATRIX] at `sums` products of rows and one or two records.

    `count` numbers are multiplied, a multiple of 32, from addresses in the first row and in the
    first record on. For numba code.
    """
    records = range(num_records.literal_value)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        if not _has_matrices(writer):
            return context.get_dummy_value()
        _, weights_at, row_bytes, states_at, record_bytes, count, sums_at = values
        lower = builder.add(weights_at, builder.mul(row_bytes, writer.number(I64, MATRIX)))
        rows = [weights_at, lower]
        tokens = [states_at, builder.add(states_at, record_bytes)]
        own = writer.number(I64, _ROW_BYTES)
        tiles = [(record, half) for record in records for half in range(2)]
        places = [writer.at(sums_at, _TILE_BYTES * (2 * record + half)) for record, half in tiles]
        for (record, half), place in zip(tiles, places, strict=True):
            _load(writer, _SUMS + 2 * record + half, place, own)
        with writer.loop(builder.udiv(count, writer.number(I64, _PAIRS_LEN))) as index:
            for half in range(2):
                here = writer.step(rows[half], index, _ROW_BYTES)
                _load(writer, _WEIGHTS + half, here, row_bytes)
            for record in records:
                here = writer.step(tokens[record], index, _TILE_BYTES)
                _load(writer, _STATES + record, here, own)
            for record, half in tiles:
                numbers = _SUMS + 2 * record + half, _WEIGHTS + half, _STATES + record
                _call(writer, "tdpbf16ps", *(writer.number(I8, number) for number in numbers))
        for (record, half), place in zip(tiles, places, strict=True):
            tile = writer.number(I8, _SUMS + 2 * record + half)
            _call(writer, "tilestored64", tile, _pointer(writer, place), own)
        return context.get_dummy_value()

    return types.void(num_records, *(types.int64,) * 6), generate


def _load(writer: Writer, tile: int, address: Value, stride: Value) -> None:
    number, place = writer.number(I8, tile), _pointer(writer, address)
    _call(writer, "tileloadd64", number, place, stride)

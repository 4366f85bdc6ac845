"""Rows of quantised weights, for compiled code: unpacked, or multiplied with a state at once.

Each function takes a format's code and has a case for every format.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from daemon.engine.cpu.blocks import CODES, LANES, Value, block_bytes, block_len, vectors
from daemon.models.formats import FORMATS, Format

COLUMNS = 4
"""Rows of a weight, columns of a product, that are multiplied together: a state is read once."""

_LONG, _FLOAT = ir.IntType(64), ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_WIDE = ir.VectorType(ir.IntType(32), LANES)

Write = Callable[[Any, Format, list[Value]], None]
"""Writes the code for one format, given a builder and the arguments."""


@intrinsic
def unpack_row(_typing: Any, _code: Any, _source: Any, _columns: Any, _target: Any) -> Any:
    """Some of a row's numbers, whole blocks, as float32 at an address."""
    return types.void(*(types.int64,) * 4), _cases(_write_floats)


@intrinsic
def unpack_row_narrow(_typing: Any, _code: Any, _source: Any, _columns: Any, _target: Any) -> Any:
    """The same as bfloat16, to the nearest."""
    return types.void(*(types.int64,) * 4), _cases(_write_narrow)


@intrinsic
def dot_rows(
    _typing: Any,
    _code: Any,
    _source: Any,
    _row_bytes: Any,
    _columns: Any,
    _state: Any,
    _output: Any,
) -> Any:
    """COLUMNS rows, `row_bytes` apart, times one float32 state."""
    return types.void(*(types.int64,) * 6), _cases(_write_dots)


def _cases(write: Write) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        end = builder.append_basic_block("end")
        switch = builder.switch(values[0], end)
        for name, code in CODES.items():
            case = builder.append_basic_block(f"of_{code}")
            switch.add_case(_long(code), case)
            builder.position_at_end(case)
            write(builder, FORMATS[name], list(values[1:]))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return generate


def _long(number: int) -> Value:
    return ir.Constant(_LONG, number)


def _at(builder: Any, kind: Any, address: Value, offset: Value) -> Value:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _write_floats(builder: Any, form: Format, arguments: list[Value]) -> None:
    _write_row(builder, form, arguments, 4)


def _write_narrow(builder: Any, form: Format, arguments: list[Value]) -> None:
    _write_row(builder, form, arguments, 2)


def _write_row(builder: Any, form: Format, arguments: list[Value], size_bytes: int) -> None:
    source, columns, target = arguments
    count = builder.udiv(columns, _long(block_len(form)))
    with cgutils.for_range(builder, count) as loop:
        from_ = _step(builder, source, loop.index, block_bytes(form))
        to = _step(builder, target, loop.index, size_bytes * block_len(form))
        for number, vector in enumerate(vectors(form, builder, from_)):
            kept = _narrowed(builder, vector) if size_bytes == 2 else vector
            place = _at(builder, kept.type, to, _long(size_bytes * LANES * number))
            builder.store(kept, place).align = 1


def _step(builder: Any, base: Value, index: Value, size_bytes: int) -> Value:
    return builder.add(base, builder.mul(index, _long(size_bytes)))


def _narrowed(builder: Any, vector: Value) -> Value:
    """float32 as the bits of bfloat16: to the nearest, halfway to the even one; NaN stays NaN."""
    bits = builder.bitcast(vector, _WIDE)
    sixteen, one = (ir.Constant(_WIDE, [number] * LANES) for number in (16, 1))
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    rounded = builder.add(bits, builder.add(odd, ir.Constant(_WIDE, [0x7FFF] * LANES)))
    is_nan = builder.fcmp_unordered("uno", vector, vector)
    kept = builder.select(is_nan, bits, rounded)
    return builder.trunc(builder.lshr(kept, sixteen), _HALVES)


def _write_dots(builder: Any, form: Format, arguments: list[Value]) -> None:
    source, row_bytes, columns, state, output = arguments
    zero = ir.Constant(_FLOATS, [0.0] * LANES)
    # Two sums a row: one alone would wait for itself.
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in range(COLUMNS)]
    for total in (one for pair in sums for one in pair):
        builder.store(zero, total)
    count = builder.udiv(columns, _long(block_len(form)))
    rows = [builder.add(source, builder.mul(row_bytes, _long(row))) for row in range(COLUMNS)]
    with cgutils.for_range(builder, count) as loop:
        states = _step(builder, state, loop.index, 4 * block_len(form))
        for row, pair in zip(rows, sums, strict=True):
            block = _step(builder, row, loop.index, block_bytes(form))
            for number, vector in enumerate(vectors(form, builder, block)):
                loaded = builder.load(_at(builder, _FLOATS, states, _long(4 * LANES * number)))
                loaded.align = 1
                total = pair[number % 2]
                builder.store(_fused(builder, vector, loaded, builder.load(total)), total)
    for row, (even, odd) in enumerate(sums):
        total = _total(builder, builder.fadd(builder.load(even), builder.load(odd)))
        builder.store(total, _at(builder, _FLOAT, output, _long(4 * row)))


def _fused(builder: Any, one: Value, other: Value, total: Value) -> Value:
    """one * other + total, rounded once."""
    name = f"llvm.fma.v{LANES}f32"
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    found = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(found, [one, other, total])


def _total(builder: Any, vector: Value) -> Value:
    """The sum of all lanes, halved and halved again."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        kind = ir.VectorType(ir.IntType(32), width)
        halves = [
            builder.shuffle_vector(vector, undefined, ir.Constant(kind, [*lanes]))
            for lanes in (range(width), range(width, 2 * width))
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

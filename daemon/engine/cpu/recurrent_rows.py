"""The innermost loops of recurrent layers over their states, as vector code for numba."""

from typing import Any

from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.vectors import FLOAT, Value, Writer, lanes


@intrinsic(prefer_literal=True)
def read_columns(
    _typing: Any,
    count: Any,
    state: Any,
    stride: Any,
    weights: Any,
    others: Any,
    num_rows: Any,
    sums: Any,
) -> Any:
    """float32 [2, count] at `sums`: the sums of rows of a state, weighed in two ways.

    Rows lie `stride` bytes apart, and `count` of their numbers are summed; `weights` and `others`
    have a number for each row. Addresses are int64. For numba code.
    """
    width = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, state_at, stride, *weights_at, num_rows, sums_at = values
        vector = lanes(FLOAT, width)
        totals = [writer.variable(writer.number(vector, 0.0)) for _ in weights_at]
        with writer.loop(num_rows) as index:
            row = writer.load(vector, builder.add(state_at, builder.mul(index, stride)))
            for total, at in zip(totals, weights_at, strict=True):
                weight = writer.load(FLOAT, writer.step(at, index, 4))
                writer.add_to(total, row, writer.splat(weight, width))
        for part, total in enumerate(totals):
            writer.store(builder.load(total), sums_at, 4 * width * part)
        return context.get_dummy_value()

    return types.void(count, *(types.int64,) * 6), generate


@intrinsic(prefer_literal=True)
def write_columns(
    _typing: Any,
    count: Any,
    state: Any,
    stride: Any,
    decay: Any,
    weights: Any,
    added: Any,
    num_rows: Any,
) -> Any:
    """Each row of a state decays by its number and takes `added`, float32 [count], by its weight.

    Rows as of `read_columns`. Addresses are int64. For numba code.
    """
    width = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, state_at, stride, decay_at, weights_at, added_at, num_rows = values
        vector = lanes(FLOAT, width)
        added = writer.load(vector, added_at)
        with writer.loop(num_rows) as index:
            at = builder.add(state_at, builder.mul(index, stride))
            decay, weight = (
                writer.splat(writer.load(FLOAT, writer.step(numbers, index, 4)), width)
                for numbers in (decay_at, weights_at)
            )
            kept = builder.fmul(writer.load(vector, at), decay)
            writer.store(writer.muladd(weight, added, kept), at)
        return context.get_dummy_value()

    return types.void(count, *(types.int64,) * 6), generate


def _scan(
    writer: Writer,
    width: int,
    addresses: tuple[Value, Value, Value],
    num_vectors: Value,
    taken: Value,
    decay_of: Any,
) -> Value:
    """The sum of a row's numbers by `read`, after each has decayed and taken its share by `write`.

    `addresses`: the row, `write` and `read`; `decay_of` gives a vector's decay by its index.
    """
    builder, vector, size_bytes = writer.builder, lanes(FLOAT, width), 4 * width
    total, taken = writer.variable(writer.number(vector, 0.0)), writer.splat(taken, width)
    with writer.loop(num_vectors) as index:
        state, write, read = (writer.step(at, index, size_bytes) for at in addresses)
        kept = builder.fmul(writer.load(vector, state), decay_of(index))
        row = writer.muladd(taken, writer.load(vector, write), kept)
        writer.store(row, state)
        writer.add_to(total, row, writer.load(vector, read))
    return writer.total(builder.load(total))


@intrinsic(prefer_literal=True)
def scan_row(
    _typing: Any,
    count: Any,
    state: Any,
    num_vectors: Any,
    decay: Any,
    taken: Any,
    write: Any,
    read: Any,
) -> Any:
    """The product of `read` and a row of a state that has decayed and taken `taken` by `write`.

    The row, `write` and `read` are float32 [num_vectors * count] at addresses. For numba code.
    """
    width = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, state_at, num_vectors, decay, taken, write_at, read_at = values
        decays = writer.splat(decay, width)
        addresses = state_at, write_at, read_at
        return _scan(writer, width, addresses, num_vectors, taken, lambda _: decays)

    numbers = types.float32, types.float32
    return types.float32(count, *(types.int64,) * 2, *numbers, *(types.int64,) * 2), generate


@intrinsic(prefer_literal=True)
def scan_row_by_rates(
    _typing: Any,
    count: Any,
    state: Any,
    num_vectors: Any,
    rates: Any,
    step: Any,
    taken: Any,
    write: Any,
    read: Any,
) -> Any:
    """As `scan_row`, each number decaying by e ** (step * its rate), of rates below 0.

    For numba code that is compiled without reassociation.
    """
    width = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, state_at, num_vectors, rates_at, step, taken, write_at, read_at = values
        vector, steps = lanes(FLOAT, width), writer.splat(step, width)

        def decay_of(index: Value) -> Value:
            rates = writer.load(vector, writer.step(rates_at, index, 4 * width))
            return writer.exp(builder.fmul(rates, steps))

        addresses = state_at, write_at, read_at
        return _scan(writer, width, addresses, num_vectors, taken, decay_of)

    numbers = types.float32, types.float32
    return types.float32(count, *(types.int64,) * 3, *numbers, *(types.int64,) * 2), generate

"""Writes tiles of sums, whose lanes are tokens, to rows of tokens, as vector code for numba."""

from typing import Any

from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.vectors import FLOAT, I64, Writer, lanes

SIDE = 16
"""Columns, and tokens, of a tile."""


@intrinsic
def write_tile(_typing: Any, sums: Any, sums_bytes: Any, output: Any, output_bytes: Any) -> Any:
    """float32 [tokens, columns] at `output`, of [columns, tokens] at `sums`; `SIDE` of each.

    Rows lie so many bytes apart. For numba code.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        sums_at, sums_bytes, output_at, output_bytes = values

        def places(address: Any, step_bytes: Any) -> list[Any]:
            steps = (builder.mul(step_bytes, writer.number(I64, row)) for row in range(SIDE))
            return [builder.add(address, step) for step in steps]

        vector = lanes(FLOAT, SIDE)
        rows = [writer.load(vector, place) for place in places(sums_at, sums_bytes)]
        for numbers, place in zip(
            writer.transposed(rows), places(output_at, output_bytes), strict=True
        ):
            writer.store(numbers, place)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), generate

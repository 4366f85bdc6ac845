"""The innermost loop over rounded states of one token, as vector code for numba's functions.

Rows of blocks are multiplied as they lie in memory: see `integer_dots` for records.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.blocks import CHUNK_LEN, HALF_CHUNK, Block
from daemon.engine.cpu.dots import TILE, fetch_lines, form_of
from daemon.engine.cpu.integer_dots import dot_bytes
from daemon.engine.cpu.vectors import FLOAT, I8, I32, I64, Value, Writer, lanes
from daemon.models.formats import WeightFormat

_SHORT_BLOCKS = 4
"""Blocks of one chunk that are read together."""
_LANES = CHUNK_LEN // 4
_LONG_LEN = 256


@intrinsic(prefer_literal=True)
def dot_codes(
    _typing: Any, form: Any, rows: Any, ahead: Any, states: Any, width: Any, sums: Any
) -> Any:
    """float32 [TILE] at `sums`: products of a record of one token and `TILE` rows.

    `rows` is the address of as many addresses (int64), `width` is K; the bytes that lie `ahead` of
    the rows are fetched. For numba code.
    """
    form_here = form_of(form)
    length = reader(form_here).length(form_here)
    together = _SHORT_BLOCKS if length == CHUNK_LEN else 1

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, rows_at, ahead, codes_at, width, sums_at = values
        addresses = [writer.load(I64, rows_at, 8 * column) for column in range(TILE)]
        dots = _Dots(writer, form_here, addresses, ahead, codes_at, width)
        blocks = builder.udiv(width, writer.number(I64, length))
        several = builder.udiv(blocks, writer.number(I64, together))
        dots.loop(writer.number(I64, 0), several, together)
        done = builder.mul(several, writer.number(I64, together))
        if together > 1:
            dots.loop(done, builder.sub(blocks, done), 1)
        writer.store(dots.totals(), sums_at)
        return context.get_dummy_value()

    return types.void(form, *(types.int64,) * 5), generate


class _Dots:
    """Sums of `TILE` rows, and the code that adds blocks to them."""

    def __init__(
        self,
        writer: Writer,
        form: WeightFormat,
        rows: list[Value],
        ahead: Value,
        codes: Value,
        width: Value,
    ) -> None:
        self._writer = writer
        self._builder = writer.builder
        self._form = form
        self._kind = reader(form)
        self._rows = rows
        self._ahead = ahead
        self._codes = codes
        self._scales = self._builder.add(codes, width)
        eighth = self._builder.lshr(width, writer.number(I64, 3))
        self._sums = self._builder.add(self._scales, eighth)
        # Wide vectors have fewer places to be computed in: spreading many scales takes them all.
        many_scales = self._kind.length(form) == _LONG_LEN and self._kind.scale_len == CHUNK_LEN
        self._wide = writer.has("avx512vnni") and not many_scales
        self._factors = self._kind.kind_of_factors(writer)
        own = self._kind.own_offsets
        self._zero = 0 if own else self._kind.zero_of_factors(writer)
        self._offset = own or self._zero != 0
        count = 2 * _LANES if self._wide else _LANES
        zero = writer.number(lanes(FLOAT, count), 0.0)
        self._dots = [writer.variable(zero) for _ in range(TILE)]
        self._others: list[list[Value]] = [[] for _ in range(TILE)]

    def loop(self, first: Value, count: Value, together: int) -> None:
        """Add `count` times as many blocks, the first of them at an index."""
        length, size_bytes = self._kind.length(self._form), self._kind.size_bytes(self._form)
        num_scales = together * length // self._kind.scale_len
        zero = self._writer.number(lanes(FLOAT, num_scales), 0.0)
        others = [self._writer.variable(zero) for _ in range(TILE if self._offset else 0)]
        with self._writer.loop(count) as turn:
            index = self._writer.step(first, turn, together)
            columns = []
            for row in self._rows:
                here = self._writer.step(row, index, size_bytes)
                fetched = self._builder.add(here, self._ahead)
                fetch_lines(self._writer, fetched, together * size_bytes)
                offsets = (size_bytes * block for block in range(together))
                columns.append([self._block(self._writer.at(here, at)) for at in offsets])
            self._add(index, columns, others)
        for row, other in enumerate(others):
            self._others[row].append(other)

    def totals(self) -> Value:
        """The sums of the rows, in a lane each."""
        load, total = self._builder.load, self._writer.totals
        found = total([load(dots) for dots in self._dots])
        for others in zip(*self._others, strict=True):
            more = total([load(other) for other in others])
            if self._zero:
                zero = self._writer.number(more.type, -float(self._zero))
                more = self._builder.fmul(more, zero)
            found = self._builder.fadd(found, more)
        return found

    def _block(self, address: Value) -> Block:
        return self._kind(self._writer, self._form, address)

    def _add(self, index: Value, columns: list[list[Block]], others: list[Value]) -> None:
        """Add blocks that lie next to each other."""
        length = self._kind.length(self._form)
        chunks, of_block = len(columns[0]) * length // CHUNK_LEN, length // CHUNK_LEN
        scales, sums = self._scales_of(index, chunks)
        codes = self._writer.step(self._codes, index, length)
        worths = []
        for row, blocks in enumerate(columns):
            of_row = self._kind.scales_behind(blocks)
            worths.append(self._builder.fmul(of_row, scales))
            if self._offset:
                # A zero that is the same for all is multiplied with once, at the end.
                own = self._kind.own_offsets
                added = self._kind.offsets_behind(blocks) if own else of_row
                self._writer.add_to(others[row], added, sums)
        # Where each fifth bit lies elsewhere, it is put to whole chunks.
        if self._wide and len(columns[0]) == _SHORT_BLOCKS and self._kind.code_bits != 5:
            self._add_short(codes, columns, worths)
            return
        step = 2 if self._wide and chunks > 1 else 1
        for chunk in range(0, chunks, step):
            kind = lanes(I8, CHUNK_LEN * step)
            signed = self._writer.load(kind, codes, CHUNK_LEN * chunk)
            for blocks, worth, total in zip(columns, worths, self._dots, strict=True):
                both = [
                    blocks[one // of_block].factors(one % of_block)
                    for one in range(chunk, chunk + step)
                ]
                self._add_chunks(chunk, self._writer.joined(both), signed, worth, total)

    def _add_short(self, codes: Value, columns: list[list[Block]], worths: list[Value]) -> None:
        """Add blocks of one chunk: their first halves side by side, and their second halves."""
        writer, kind = self._writer, lanes(I8, 2 * CHUNK_LEN)
        loaded = [writer.load(kind, codes, 2 * CHUNK_LEN * half) for half in range(2)]
        starts = range(0, _SHORT_BLOCKS * CHUNK_LEN, CHUNK_LEN)
        signed = []
        for first in (0, HALF_CHUNK):
            numbers = [at + first + number for at in starts for number in range(HALF_CHUNK)]
            signed.append(writer.pick(loaded[0], numbers, loaded[1]))
        of_lanes = [lane // (HALF_CHUNK // 4) for lane in range(2 * _LANES)]
        for blocks, worth, total in zip(columns, worths, self._dots, strict=True):
            dots = writer.number(lanes(I32, 2 * _LANES), 0)
            whole = [block.factors(0) for block in blocks]
            for half, states in enumerate(signed):
                parts = [writer.part(one, HALF_CHUNK * half, HALF_CHUNK) for one in whole]
                dots = dot_bytes(writer, dots, self._writer.joined(parts), states, self._factors)
            by = writer.pick(worth, of_lanes)
            writer.add_to(total, self._builder.sitofp(dots, by.type), by)

    def _add_chunks(
        self, chunk: int, codes: Value, signed: Value, worth: Value, total: Value
    ) -> None:
        count = codes.type.count // 4
        nothing = self._writer.number(lanes(I32, count), 0)
        dots = dot_bytes(self._writer, nothing, codes, signed, self._factors)
        numbers = range(CHUNK_LEN * chunk, CHUNK_LEN * chunk + 4 * count, 4)
        by = self._writer.pick(worth, [number // self._kind.scale_len for number in numbers])
        floats = self._builder.sitofp(dots, by.type)
        if self._wide and count == _LANES:
            empty = self._writer.number(by.type, 0.0)
            floats, by = (self._writer.concat(one, empty) for one in (floats, by))
        self._writer.add_to(total, floats, by)

    def _scales_of(self, index: Value, count: int) -> tuple[Value, Value]:
        """Scales and sums of the token for so many chunks: a lane for each scale of the weights."""
        writer, of_block = self._writer, self._kind.length(self._form) // CHUNK_LEN
        scales_at = writer.step(self._scales, index, 4 * of_block)
        sums_at = writer.step(self._sums, index, 8 * of_block)
        scales = writer.load(lanes(FLOAT, count), scales_at)
        sums = writer.load(lanes(FLOAT, 2 * count), sums_at)
        if self._kind.scale_len == HALF_CHUNK:
            return writer.pick(scales, [half // 2 for half in range(2 * count)]), sums
        even, odd = (writer.pick(sums, range(first, 2 * count, 2)) for first in range(2))
        return scales, self._builder.fadd(even, odd)

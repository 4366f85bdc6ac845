"""The innermost loop over rounded states of a few tokens, as vector code for numba's functions.

Rows of blocks are multiplied as they lie in memory: see `integer_dots` for records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
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
    _typing: Any,
    form: Any,
    num_tokens: Any,
    rows: Any,
    ahead: Any,
    records: Any,
    width: Any,
    sums: Any,
) -> Any:
    """float32 [tokens, TILE] at `sums`: products of records of one token each and `TILE` rows.

    `rows` is the address of as many addresses (int64), `width` is K; the bytes that lie `ahead` of
    the rows are fetched. A token's numbers are summed in one order, with any tokens beside it. For
    numba code.
    """
    form_here, count = form_of(form), num_tokens.literal_value
    length = reader(form_here).length(form_here)
    together = _SHORT_BLOCKS if length == CHUNK_LEN else 1

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        writer = Writer(context, builder)
        _, _, rows_at, ahead, records_at, width, sums_at = values
        addresses = [writer.load(I64, rows_at, 8 * column) for column in range(TILE)]
        tokens = _tokens(writer, records_at, width, count)
        dots = _Dots(writer, form_here, addresses, ahead, tokens)
        blocks = builder.udiv(width, writer.number(I64, length))
        several = builder.udiv(blocks, writer.number(I64, together))
        dots.loop(writer.number(I64, 0), several, together)
        done = builder.mul(several, writer.number(I64, together))
        if together > 1:
            dots.loop(done, builder.sub(blocks, done), 1)
        for token in range(count):
            writer.store(dots.totals(token), sums_at, 4 * TILE * token)
        return context.get_dummy_value()

    return types.void(form, num_tokens, *(types.int64,) * 5), generate


@dataclass(frozen=True, slots=True)
class _Token:
    """The addresses of a token's record."""

    codes: Value
    scales: Value
    sums: Value


def _tokens(writer: Writer, records: Value, width: Value, count: int) -> list[_Token]:
    """The addresses of `count` records of `width` numbers, one behind the other."""
    builder, found = writer.builder, list[_Token]()
    eighth = builder.lshr(width, writer.number(I64, 3))
    for _ in range(count):
        scales = builder.add(records, width)
        sums = builder.add(scales, eighth)
        found.append(_Token(records, scales, sums))
        records = builder.add(sums, builder.mul(eighth, writer.number(I64, 2)))
    return found


@dataclass(frozen=True, slots=True)
class _Worths:
    """The worth of rows' codes times those of a token: vectors of some rows' scales each."""

    vectors: list[Value]
    num_scales: int  # of a row

    def spread(self, writer: Writer, row: int, scales: Sequence[int]) -> Value:
        """A lane for each of these scales of a row."""
        rows = self.vectors[0].type.count // self.num_scales
        first = row % rows * self.num_scales
        return writer.pick(self.vectors[row // rows], [first + scale for scale in scales])


class _Dots:
    """Sums of `TILE` rows for each token, and the code that adds blocks to them."""

    def __init__(
        self,
        writer: Writer,
        form: WeightFormat,
        rows: list[Value],
        ahead: Value,
        tokens: Sequence[_Token],
    ) -> None:
        self._writer = writer
        self._builder = writer.builder
        self._form = form
        self._kind = reader(form)
        self._rows = rows
        self._ahead = ahead
        self._tokens = tokens
        # Wide vectors have fewer places to be computed in: spreading many scales takes them all.
        many_scales = self._kind.length(form) == _LONG_LEN and self._kind.scale_len == CHUNK_LEN
        self._wide = writer.has("avx512vnni") and not many_scales
        self._factors = self._kind.kind_of_factors(writer)
        own = self._kind.own_offsets
        self._zero = 0 if own else self._kind.zero_of_factors(writer)
        self._offset = own or self._zero != 0
        zero = writer.number(lanes(FLOAT, 2 * _LANES if self._wide else _LANES), 0.0)
        self._dots = [[writer.variable(zero) for _ in rows] for _ in tokens]
        self._others: list[list[list[Value]]] = []  # of each loop, by token: of some rows each

    def loop(self, first: Value, count: Value, together: int) -> None:
        """Add `count` times `together` blocks, the first of them at an index."""
        length, size_bytes = self._kind.length(self._form), self._kind.size_bytes(self._form)
        num_scales = together * length // self._kind.scale_len
        rows = self._rows_of(num_scales)
        zero = self._writer.number(lanes(FLOAT, num_scales * rows), 0.0)
        groups = range(TILE // rows if self._offset else 0)
        others = [[self._writer.variable(zero) for _ in groups] for _ in self._tokens]
        with self._writer.loop(count) as turn:
            index = self._writer.step(first, turn, together)
            columns = []
            for row in self._rows:
                here = self._writer.step(row, index, size_bytes)
                fetched = self._builder.add(here, self._ahead)
                fetch_lines(self._writer, fetched, together * size_bytes)
                offsets = (size_bytes * block for block in range(together))
                places = (self._writer.at(here, at) for at in offsets)
                columns.append([self._kind(self._writer, self._form, place) for place in places])
            self._add(index, columns, others, num_scales)
        self._others.append(others)

    def totals(self, token: int) -> Value:
        """The sums of the rows for one token, in a lane each."""
        load, total = self._builder.load, self._writer.totals
        found = total([load(dots) for dots in self._dots[token]])
        for others in self._others if self._offset else ():
            vectors = [load(other) for other in others[token]]
            num_scales = vectors[0].type.count * len(vectors) // TILE
            starts = range(0, vectors[0].type.count, num_scales)
            more = total(
                [
                    self._writer.part(vector, start, num_scales)
                    for vector in vectors
                    for start in starts
                ]
            )
            if self._zero:
                zero = self._writer.number(more.type, -float(self._zero))
                more = self._builder.fmul(more, zero)
            found = self._builder.fadd(found, more)
        return found

    def _add(
        self,
        index: Value,
        columns: list[list[Block]],
        others: list[list[Value]],
        num_scales: int,
    ) -> None:
        """Add blocks that lie next to each other, of `num_scales` scales a row."""
        length = self._kind.length(self._form)
        rows, kind = self._rows_of(num_scales), self._kind
        groups = [list(chain(*columns[at : at + rows])) for at in range(0, TILE, rows)]
        of_rows = [kind.scales_behind(blocks) for blocks in groups]
        # A zero that is the same for all is multiplied with once, at the end.
        added = [kind.offsets_behind(blocks) for blocks in groups] if kind.own_offsets else of_rows
        worths = []
        for token, of_token in zip(self._tokens, others, strict=True):
            scales, sums = self._scales_of(token, index, num_scales, rows)
            vectors = [self._builder.fmul(of_row, scales) for of_row in of_rows]
            worths.append(_Worths(vectors, num_scales))
            for place, offset in zip(of_token, added, strict=self._offset):
                self._writer.add_to(place, offset, sums)
        codes = [self._writer.step(token.codes, index, length) for token in self._tokens]
        # Bits that lie apart are put to whole chunks, and halves may have scales of their own.
        whole = not self._kind.bits_apart and self._kind.scale_len == CHUNK_LEN
        if self._wide and len(columns[0]) == _SHORT_BLOCKS and whole:
            self._add_short(codes, columns, worths)
        else:
            self._add_long(codes, columns, worths)

    def _add_short(
        self, codes: list[Value], columns: list[list[Block]], worths: list[_Worths]
    ) -> None:
        """Add blocks of one chunk: their first halves side by side, and their second halves."""
        writer = self._writer
        signed = [self._halves(at) for at in codes]
        of_lanes = [lane // (HALF_CHUNK // 4) for lane in range(2 * _LANES)]
        for row, blocks in enumerate(columns):
            whole = [block.factors(0) for block in blocks]
            parts = [
                writer.joined(
                    [writer.part(factors, HALF_CHUNK * half, HALF_CHUNK) for factors in whole]
                )
                for half in range(2)
            ]
            for token, states in enumerate(signed):
                dots = writer.number(lanes(I32, 2 * _LANES), 0)
                for part, state in zip(parts, states, strict=True):
                    dots = dot_bytes(writer, dots, part, state, self._factors)
                by = worths[token].spread(writer, row, of_lanes)
                writer.add_to(self._dots[token][row], self._builder.sitofp(dots, by.type), by)

    def _halves(self, codes: Value) -> list[Value]:
        """All first halves of a few chunks of a token's codes, and all second ones."""
        kind = lanes(I8, 2 * CHUNK_LEN)
        loaded = [self._writer.load(kind, codes, 2 * CHUNK_LEN * half) for half in range(2)]
        starts = range(0, _SHORT_BLOCKS * CHUNK_LEN, CHUNK_LEN)
        found = []
        for first in (0, HALF_CHUNK):
            numbers = [at + first + number for at in starts for number in range(HALF_CHUNK)]
            found.append(self._writer.pick(loaded[0], numbers, loaded[1]))
        return found

    def _add_long(
        self, codes: list[Value], columns: list[list[Block]], worths: list[_Worths]
    ) -> None:
        """Add blocks chunk by chunk, two at once where vectors are wide."""
        of_block = self._kind.length(self._form) // CHUNK_LEN
        chunks = len(columns[0]) * of_block
        step = 2 if self._wide and chunks > 1 else 1
        for chunk in range(0, chunks, step):
            kind = lanes(I8, CHUNK_LEN * step)
            signed = [self._writer.load(kind, at, CHUNK_LEN * chunk) for at in codes]
            for row, blocks in enumerate(columns):
                both = [
                    blocks[number // of_block].factors(number % of_block)
                    for number in range(chunk, chunk + step)
                ]
                factors = self._writer.joined(both)
                for token, states in enumerate(signed):
                    self._add_chunks((row, chunk), factors, states, worths[token], token)

    def _add_chunks(
        self, place: tuple[int, int], codes: Value, signed: Value, worths: _Worths, token: int
    ) -> None:
        """Add products of some chunks of a row; `place`: which, and the first of the chunks."""
        row, chunk = place
        count = codes.type.count // 4
        nothing = self._writer.number(lanes(I32, count), 0)
        dots = dot_bytes(self._writer, nothing, codes, signed, self._factors)
        numbers = range(CHUNK_LEN * chunk, CHUNK_LEN * chunk + 4 * count, 4)
        scales = [number // self._kind.scale_len for number in numbers]
        by = worths.spread(self._writer, row, scales)
        floats = self._builder.sitofp(dots, by.type)
        if self._wide and count == _LANES:
            empty = self._writer.number(by.type, 0.0)
            floats, by = (self._writer.concat(vector, empty) for vector in (floats, by))
        self._writer.add_to(self._dots[token][row], floats, by)

    def _scales_of(
        self, token: _Token, index: Value, num_scales: int, rows: int
    ) -> tuple[Value, Value]:
        """Scales and sums of a token: a lane for each scale of some rows."""
        writer, of_block = self._writer, self._kind.length(self._form) // CHUNK_LEN
        runs = CHUNK_LEN // self._kind.scale_len
        count = num_scales // runs  # chunks
        scales_at = writer.step(token.scales, index, 4 * of_block)
        sums_at = writer.step(token.sums, index, 8 * of_block)
        scales = writer.load(lanes(FLOAT, count), scales_at)
        sums = writer.load(lanes(FLOAT, 2 * count), sums_at)
        if runs == 1:
            even, odd = (writer.pick(sums, range(first, 2 * count, 2)) for first in range(2))
            sums = self._builder.fadd(even, odd)
        chunks = [scale // runs for scale in range(num_scales)]
        return writer.pick(scales, chunks * rows), writer.pick(sums, [*range(num_scales)] * rows)

    def _rows_of(self, num_scales: int) -> int:
        """How many rows' scales are one vector, of `num_scales` a row."""
        most = 2 * _LANES if self._wide else _LANES
        return min(TILE, max(1, most // num_scales))

"""A wave's logits, computed as it will be served: paged, flattened, step by step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.batch.multi_step import MOST_TIMES
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.upload import upload, upload_all
from daemon.engine.kv.pool import PagedKV
from daemon.engine.model.backend import Backend
from daemon.engine.model.model import CausalModel, attention_of
from daemon.engine.sampler.rules import DrawRules
from daemon.engine.verify.model.by_layers import DecoderStep, decoded
from daemon.engine.verify.model.script import Wave
from daemon.state.batch import Batch
from daemon.wire.columns import Int32, int32

_LOUD = 3.0
"""How much larger the last keys are than all before them, whose number alone would not show."""

_BEGUN = 0.1
"""The largest number of states that a trial's sequences begin with far out."""

_TIMES = min(4, MOST_TIMES)
"""Steps of a multi-step program in a trial."""

Tell = Callable[[], None]
"""Called once per step, as progress."""


@dataclass(frozen=True, slots=True)
class TrialPool:
    """The pool, slots and backend that a trial's steps use."""

    cache: PagedKV
    slots: Slots
    backend: Backend


class _Row(NamedTuple):
    """A sequence's part of a step."""

    sequence: int  # index in the wave
    start: int  # its tokens in the cache
    num_tokens: int


class Part(NamedTuple):
    """Tokens of a sequence that were computed in the same way."""

    sequence: int
    start: int
    logits: torch.Tensor  # float32 [n, vocab], on the host
    compiled: bool  # by a compiled step


def compute(
    model: CausalModel, wave: Wave, pool: TrialPool, tell: Tell, by_layers: bool = False
) -> list[Part]:
    """The logits of every token of a wave. The pool and its slots are as empty as before.

    `by_layers`: all steps go through one layer after the other, where a decoder computes; then
    `tell` is called behind each layer.
    """
    tables = _tables(wave, pool)
    _poison_states(tables, pool)
    steps = [_rows(wave, step) for step in range(wave.num_steps)]
    # Sampled tokens are fed by the device in every other step, by the plan in the rest.
    flats = (
        _flat(wave, rows, tables if step == 0 else [], pool, step % 2 == 0)
        for step, rows in enumerate(steps)
    )
    if by_layers and model.decoder is not None:
        begun = [_begun(flat, pool) for flat in flats]
        computed = iter([(logits, False) for logits in decoded(model.decoder, begun, tell)])
    else:
        computed = (_computed(model, flat, wave, pool, tell) for flat in flats)
    parts = []
    for rows, (logits, compiled) in zip(steps, computed, strict=True):
        pieces = logits.float().cpu().clone().split([row.num_tokens for row in rows])
        parts += [
            Part(row.sequence, row.start, piece, compiled)
            for row, piece in zip(rows, pieces, strict=True)
        ]
    _clean(pool, tables)
    return parts


def _computed(
    model: CausalModel, flat: FlatBatch, wave: Wave, pool: TrialPool, tell: Tell
) -> tuple[torch.Tensor, bool]:
    """A step's logits [T, vocab], and whether a compiled step gave them."""
    compiled = not wave.shifted and model.compiles(flat)
    chosen = model if compiled else model.uncompiled
    logits = chosen.logits(flat, pool.slots, pool.cache, pool.backend)
    tell()
    return logits, compiled


def _begun(flat: FlatBatch, pool: TrialPool) -> DecoderStep:
    """A step that is still to be computed; its tokens are those that slots have now."""
    cache, backend = pool.cache, pool.backend
    states = backend.recur(flat, cache) if cache.state_pages else None
    (positions,) = upload_all((flat.positions,), cache.raw.device)
    tokens = pool.slots.inputs(flat)
    return DecoderStep(tokens, positions, attention_of(flat, cache, backend), states)


def far_steps(
    model: CausalModel, starts: Sequence[int], pool: TrialPool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Logits [rows, vocab] of a compiled step behind `starts` tokens, and of the same uncompiled.

    One block stands in for all but the last of each row, so the cache need not hold so many. None
    where no step is compiled.
    """
    last = [(slot, start // pool.cache.block_size) for slot, start in enumerate(starts)]
    shared = [(slot, index) for slot, number in last for index in range(number)]
    own = _of_groups(last, pool) + _of_states([slot for slot, _ in last], pool)
    tables = [(*place, 0) for place in _of_groups(shared, pool)]
    tables += [(*place, block) for block, place in enumerate(own, 1)]
    rows = [_Row(slot, start, 1) for slot, start in enumerate(starts)]
    if not rows or not model.compiled:
        return None
    _scribble(pool.cache, 1 + len(rows) * pool.cache.num_groups)
    begun = _BegunStates(tables, pool)
    batch = _batch(list(range(len(starts))), rows, tables, [True] * len(rows))
    pool.slots.change_tables(batch)
    tokens = int32([1] * len(rows))
    flat = flatten(batch, tokens, pool.slots.block_table, *pool.cache.shape)
    found = None
    if model.compiles(flat):
        parts = flat, pool.slots, pool.cache, pool.backend
        compiled = model.logits(*parts).float().cpu().clone()
        begun.restore()
        found = compiled, model.uncompiled.logits(*parts).float().cpu().clone()
    _clean(pool, [*tables, (0, 0, 0)])  # written even where no row is so long
    return found


def repeated_steps(
    model: CausalModel, longest: int, num_rows: int, pool: TrialPool
) -> tuple[Int32, Int32] | None:
    """Tokens [R, times] of a multi-step program, and the same sampled step by step.

    Across the border of a block, where `longest` allows it. None where no step is repeated.
    """
    block_size = pool.cache.block_size
    start = min(block_size - 2, longest - _TIMES)
    if start < 1 or not num_rows or not model.compiled:
        return None
    num_blocks = 1 + (start + _TIMES - 1 >= block_size)
    cells = [(slot, index) for slot in range(num_rows) for index in range(num_blocks)]
    places = _of_groups(cells, pool) + _of_states(list(range(num_rows)), pool)
    if len(places) > pool.cache.num_blocks:
        return None
    tables = [(*place, block) for block, place in enumerate(places)]
    _scribble(pool.cache, num_rows * num_blocks * pool.cache.num_groups)
    begun = _BegunStates(tables, pool)
    tokens, drawn, found = int32(range(1, num_rows + 1)), list[Int32](), None
    for time in range(_TIMES):
        rows = [_Row(slot, start + time, 1) for slot in range(num_rows)]
        batch = _batch(list(range(num_rows)), rows, [] if time else tables, [True] * num_rows)
        pool.slots.change_tables(batch)
        flat = flatten(batch, tokens, pool.slots.block_table, *pool.cache.shape)
        if not time:
            found = model.repeated(flat, DrawRules.greedy(num_rows, _TIMES))
            if found is None:
                break
            begun.restore()
        logits = model.logits(flat, pool.slots, pool.cache, pool.backend)
        tokens = logits.float().cpu().numpy().argmax(-1).astype(np.int32)
        drawn.append(tokens)
    _clean(pool, tables)
    return None if found is None else (found.tokens, np.stack(drawn, 1))


def _scribble(cache: PagedKV, num_blocks: int) -> None:
    """Fill the first blocks with keys and values; blocks that stand for many weigh less."""
    chooser = torch.Generator().manual_seed(20)
    size = (2, num_blocks * cache.block_size, *cache.blocks.shape[4:])
    places = torch.arange(size[1], device=cache.raw.device)
    blocks = places // cache.block_size
    rows = cache.row_of(blocks, places % cache.block_size)
    for layer in range(cache.num_layers):
        states = torch.randn(size, generator=chooser).to(places.device)
        states *= torch.where(blocks > 0, _LOUD, 1.0)[:, None, None]
        key, value = states.to(cache.dtype)
        cache.write(layer, rows, key, value)


def _tables(wave: Wave, pool: TrialPool) -> list[tuple[int, int, int]]:
    """(slot, index, block) of all that the wave needs; blocks in no order."""
    cells = [
        (sequence.slot, index)
        for sequence in wave.sequences
        for index in range(-(-len(sequence.tokens) // pool.cache.block_size))
    ]
    slots = [sequence.slot for sequence in wave.sequences]
    places = _of_groups(cells, pool) + _of_states(slots, pool)
    blocks = np.random.default_rng(len(places)).permutation(pool.cache.num_blocks)
    return [(*place, int(block)) for place, block in zip(places, blocks, strict=False)]


def _of_groups(cells: list[tuple[int, int]], pool: TrialPool) -> list[tuple[int, int]]:
    """(slot, index in the row of the table) of (slot, block) in every group of layers."""
    num_groups = pool.cache.num_groups
    width = pool.cache.row_blocks(pool.slots.block_table.shape[1])
    return [(slot, group * width + index) for group in range(num_groups) for slot, index in cells]


def _of_states(slots: list[int], pool: TrialPool) -> list[tuple[int, int]]:
    """(slot, index in the row of the table) of the states of slots."""
    num_cells, num_pages = pool.slots.block_table.shape[1], pool.cache.state_pages
    return [(slot, index) for slot in slots for index in range(num_cells - num_pages, num_cells)]


class _BegunStates:
    """The states that sequences of a trial have before a step, in their pages."""

    def __init__(self, tables: list[tuple[int, int, int]], pool: TrialPool) -> None:
        first = pool.slots.block_table.shape[1] - pool.cache.state_pages
        pages = np.array([block for _slot, index, block in tables if index >= first], np.int64)
        self._raw, self._pages = pool.cache.raw, upload(pages, pool.cache.raw.device)
        self._states = torch.zeros_like(self._raw[self._pages])
        if pool.cache.dtype is torch.float32:  # then all that pages of states hold is
            numbers = self._states.view(torch.float32)
            numbers.uniform_(-_BEGUN, _BEGUN, generator=torch.Generator().manual_seed(21))
        self.restore()

    def restore(self) -> None:
        """Have the sequences be as they were before a step."""
        self._raw[self._pages] = self._states


def _poison_states(tables: list[tuple[int, int, int]], pool: TrialPool) -> None:
    """Fill the pages of states with NaN: no sequence may read what was there before it."""
    first = pool.slots.block_table.shape[1] - pool.cache.state_pages
    pages = np.array([block for _slot, index, block in tables if index >= first], np.int64)
    pool.cache.raw[upload(pages, pool.cache.raw.device)] = 0xFF


def _rows(wave: Wave, step: int) -> list[_Row]:
    """The rows of a step; the sequence that comes first changes."""
    rows = []
    for index, sequence in enumerate(wave.sequences):
        at = step - sequence.begins
        if 0 <= at < len(sequence.counts):
            rows.append(_Row(index, sum(sequence.counts[:at]), sequence.counts[at]))
    turn = step % max(len(rows), 1)
    return rows[turn:] + rows[:turn]


def _flat(
    wave: Wave, rows: list[_Row], tables: list[tuple[int, int, int]], pool: TrialPool, fed: bool
) -> FlatBatch:
    """A step as a batch whose every token is sampled."""
    slots = [wave.sequences[row.sequence].slot for row in rows]
    pieces = [
        wave.sequences[row.sequence].tokens[row.start : row.start + row.num_tokens] for row in rows
    ]
    known = [fed or row.num_tokens > 1 or not row.start for row in rows]
    batch = _batch(slots, rows, tables, known)
    pool.slots.change_tables(batch)
    own = [index for index, is_known in enumerate(known) if not is_known]
    if own:
        device = pool.slots.last_token.device
        last = np.concatenate([pieces[index] for index in own])
        pool.slots.take(np.array([slots[index] for index in own], np.int64), upload(last, device))
    named = [piece for piece, is_known in zip(pieces, known, strict=True) if is_known]
    inputs = int32(np.concatenate(named)) if named else int32()
    flat = flatten(batch, inputs, pool.slots.block_table, *pool.cache.shape)
    shifts = np.repeat([wave.sequences[row.sequence].first for row in rows], batch.counts)
    everything = np.arange(len(flat.tokens))
    return replace(
        flat,
        positions=flat.positions + shifts,
        sampled_tokens=everything,
        sampled_slots=np.repeat(batch.slots, batch.counts),
        sampled_positions=flat.positions + shifts + 1,
    )


def _batch(
    slots: list[int],
    rows: list[_Row],
    tables: list[tuple[int, int, int]],
    known: list[bool],
) -> Batch:
    """`known`: whether a row's tokens are named, else it computes its slot's last one."""
    return Batch(
        instance=0,
        step=0,
        slots=int32(slots),
        starts=int32([row.start for row in rows]),
        counts=int32([row.num_tokens for row in rows]),
        samples=np.ones(len(rows), np.uint8),
        fed=np.array(known, np.uint8),
        table_slots=int32([entry[0] for entry in tables]),
        table_indices=int32([entry[1] for entry in tables]),
        table_blocks=int32([entry[2] for entry in tables]),
    )


def _clean(pool: TrialPool, tables: list[tuple[int, int, int]]) -> None:
    """Clear all that a wave left in slots and in the blocks that it wrote."""
    pool.slots.clear()
    written = sorted({block for _slot, _index, block in tables})
    device = pool.cache.raw.device
    pool.cache.raw[upload(np.array(written, np.int64), device)] = 0

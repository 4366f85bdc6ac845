"""The toy's engine: plans in, replies out, with all that a real one does to blocks.

It checks what it reads: a block of another sequence, a swap copy that came too late, a token that
was fed twice show at once as a ToyError, and would show as another text.
"""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from daemon.config.paths import default_cache
from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.models.consistent import checked_shape
from daemon.models.grammar import Compiler
from daemon.protocol.worker import Copied, Load, Logprobs, Plan, PromptLogprobs, Reply
from daemon.state.batch import Batch
from daemon.wire.columns import int32
from tests.chaos.sampler import Draw, Seat
from tests.chaos.toy import Numbers, own, seen, summary

STEP_S = 3e-3
TOKEN_S = 5e-5
COPY_BLOCK_S = 1e-5
"""The reported times of a step, of each of its tokens and of a swap copy."""
POISON = np.uint64(0xDEAD)
"""The content of a block while a copy into it is under way."""


class ToyError(Exception):
    """A plan that a real worker would have computed nonsense for."""


class Copies(NamedTuple):
    """The swap copies of one plan, on their way."""

    step: int
    outs: list[tuple[int, int, Numbers]]  # device block, host block, what it held
    ins: list[tuple[int, int]]  # host block, device block
    then: list[Callable[[], None]]  # who waits for them


class Pools(NamedTuple):
    """Blocks [num, block_size, 2] of the device and of the host."""

    blocks: Numbers
    host: Numbers


def own_pools(load: Load) -> Pools:
    """Memory that is not shared."""
    counts = load.num_blocks, load.num_host_blocks
    return Pools(*(np.empty((count, load.block_size, 2), np.uint64) for count in counts))


class ToyEngine:
    """Blocks [num_blocks, block_size, 2], block table, seats, and the host's blocks."""

    def __init__(
        self, load: Load, copied: Callable[[Copied], None], pools: Pools | None = None
    ) -> None:
        """`pools`: where blocks are kept that others copy too; else in memory of its own."""
        cache = Path(load.cache) if load.cache else default_cache()
        shape = checked_shape(Path(load.model), cache)
        self._block_size = load.block_size
        self._vocab_size, self._eos_ids = shape.vocab_size, shape.eos_token_ids
        self._load_compiler = lambda: Compiler(Path(load.model), shape.vocab_size, self._eos_ids)
        self._compiler: Compiler | None = None
        self._blocks, self._host = pools or own_pools(load)
        for numbers in (self._blocks, self._host):
            numbers[:] = POISON
        max_blocks = -(-load.max_len // load.block_size) + 1
        self._table = np.full((load.max_slots, max_blocks), -1, np.int32)
        self._last = np.zeros(load.max_slots, np.int64)
        self._seats: dict[int, Seat] = {}
        self._copies: deque[Copies] = deque()
        self._copied = copied
        self._chance = random.Random(load.life)

    @property
    def copies_fly(self) -> bool:
        """Whether a swap copy is on its way."""
        return bool(self._copies)

    def when_copied(self, call: Callable[[], None]) -> None:
        """Call it once all swap copies so far have ended."""
        if self._copies:
            self._copies[-1].then.append(call)
        else:
            call()

    def end_copies(self) -> None:
        """The oldest plan's swap copies end, and are reported."""
        ended = self._copies.popleft()
        for block, place, held in ended.outs:
            if not np.array_equal(self._blocks[block], held):
                raise ToyError(f"block {block} was written while it was copied to {place}")
            self._host[place] = held
        for place, block in ended.ins:
            self._blocks[block] = self._host[place]
        for call in ended.then:
            call()
        num_out, num_in = len(ended.outs), len(ended.ins)
        times_s = COPY_BLOCK_S * num_out, COPY_BLOCK_S * num_in
        self._copied(Copied(ended.step, num_out, times_s[0], num_in, times_s[1]))

    def run(self, plan: Plan) -> Reply:
        """Apply a plan in its order (swap, left, joined, tables, copies, step), and answer it."""
        batch = plan.batch
        self._swap(batch)
        self._change_seats(plan)
        self._table[batch.table_slots, batch.table_indices] = batch.table_blocks
        self._blocks[batch.copy_targets] = self._blocks[batch.copy_sources]
        flat = flatten(batch, plan.inputs, self._table, self._block_size)
        flat.tokens[flat.own_tokens] = self._last[flat.own_slots]
        rows = range(len(flat.slots))
        self._write(flat)
        contexts = [self._read(flat, row) for row in rows]
        sampled = np.flatnonzero(batch.samples).tolist()
        draws = [self._draw(flat, row, contexts[row]) for row in sampled]
        scores = [self._score(flat, row, contexts[row]) for row in rows]
        return Reply(
            step=batch.step,
            tokens=int32([draw.token for draw in draws]),
            reasons=np.array([draw.reason for draw in draws], np.uint8),
            elapsed_s=STEP_S + TOKEN_S * batch.num_tokens,
            idle_s=0.0,
            logprobs=_logprobs([draw.logprobs for draw in draws]),
            prompts=tuple(score for score in scores if score is not None),
        )

    # Swap copies

    def _swap(self, batch: Batch) -> None:
        outs = list(zip(batch.out_blocks.tolist(), batch.out_places.tolist(), strict=True))
        ins = list(zip(batch.in_places.tolist(), batch.in_blocks.tolist(), strict=True))
        kept = [(block, place, self._blocks[block].copy()) for block, place in outs]
        for _place, block in ins:
            self._blocks[block] = POISON
        if outs or ins:
            self._copies.append(Copies(batch.step, kept, ins, []))
        while self._copies and (
            self._copies[0].step <= batch.awaits or self._chance.random() < 0.3
        ):
            self.end_copies()

    # Who sits where

    def _change_seats(self, plan: Plan) -> None:
        for slot in plan.batch.left_slots.tolist():
            if self._seats.pop(slot, None) is None:
                raise ToyError(f"slot {slot} is left, but nobody sat there")
            self._table[slot] = -1
        for join in plan.joins:
            if join.slot in self._seats:
                raise ToyError(f"slot {join.slot} is taken twice")
            seat = Seat(join, self._vocab_size, self._eos_ids)
            if join.sampling.grammar:
                self._compiler = self._compiler or self._load_compiler()
                seat.follow(self._compiler)
            self._seats[join.slot] = seat

    # A step

    def _write(self, flat: FlatBatch) -> None:
        """Put all rows' tokens into their blocks, then what each entry sees before it."""
        if (flat.blocks < 0).any():
            raise ToyError("a token has no block to lie in")
        own_numbers = own(flat.tokens, flat.positions)
        self._blocks[flat.blocks, flat.offsets, 0] = own_numbers
        seen_numbers = [
            seen(self._context(slot, start + count)[:, 0])[start:]
            for slot, start, count in zip(
                flat.slots.tolist(), flat.starts.tolist(), flat.counts.tolist(), strict=True
            )
        ]
        if seen_numbers:
            self._blocks[flat.blocks, flat.offsets, 1] = np.concatenate(seen_numbers)

    def _read(self, flat: FlatBatch, row: int) -> Numbers:
        """A row's whole context [T, 2]; each entry must belong to it."""
        slot = int(flat.slots[row])
        end = int(flat.starts[row] + flat.counts[row])
        context = self._context(slot, end)
        wrong = np.flatnonzero(seen(context[:, 0]) != context[:, 1])
        seat = self._seats.get(slot)
        if seat is None:
            raise ToyError(f"slot {slot} computes, but nobody sits there")
        if wrong.size:
            block = self._table[slot, wrong[0] // self._block_size]
            raise ToyError(
                f"sequence {seat.sequence}, slot {slot}: position {wrong[0]} of {end}, in block "
                f"{block}, belongs to another context"
            )
        known = seat.known_upto(end)
        if not np.array_equal(own(known, np.arange(len(known))), context[: len(known), 0]):
            raise ToyError(f"sequence {seat.sequence} was told another history than it was fed")
        return context

    def _context(self, slot: int, length: int) -> Numbers:
        blocks = self._table[slot, : -(-length // self._block_size)]
        found: Numbers = self._blocks[blocks].reshape(-1, 2)[:length]
        return found

    def _draw(self, flat: FlatBatch, row: int, context: Numbers) -> Draw:
        slot = int(flat.slots[row])
        seat = self._seats[slot]
        draw = seat.draw(summary(context[:, 1]), len(context))
        self._last[slot] = draw.token
        return draw

    def _score(self, flat: FlatBatch, row: int, context: Numbers) -> PromptLogprobs | None:
        """The log-probabilities of a row's own prompt in this step, if it wants them."""
        seat = self._seats[int(flat.slots[row])]
        start = int(flat.starts[row])
        count = min(int(flat.counts[row]), seat.num_prompt_tokens - 1 - start)
        if seat.sampling.prompt_logprobs < 0 or count <= 0:
            return None
        found = [seat.score(int(one)) for one in context[start : start + count, 1]]
        chosen = np.array([one[0] for one in found], np.float32)
        ids = int32([token for one in found for token in one[1]])
        values = np.array([value for one in found for value in one[2]], np.float32)
        return PromptLogprobs(seat.sequence, start + 1, chosen, ids, values)


def _logprobs(
    told: list[tuple[float, list[int], list[float]] | None],
) -> Logprobs | None:
    """Columns of what each row tells; those that ask for fewer are filled up."""
    rows = [row for row, one in enumerate(told) if one is not None]
    if not rows:
        return None
    found = [one for one in told if one is not None]
    deepest = max(len(one[1]) for one in found)
    ids = [[*one[1], *[0] * (deepest - len(one[1]))] for one in found]
    values = [[*one[2], *[0.0] * (deepest - len(one[2]))] for one in found]
    return Logprobs(
        int32(rows),
        np.array([one[0] for one in found], np.float32),
        int32(ids).reshape(-1),
        np.array(values, np.float32).reshape(-1),
    )

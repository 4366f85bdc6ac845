"""Computes plans: the worker's state, and what one step does to it.

A step begins with everything being queued on the device, and is finished when its tokens are read.
So the next plan may begin meanwhile: a step's tokens are the next one's input on the device.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten, part
from daemon.engine.batch.multi_step import KeptTokens, check, joined, plan_of
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.streams import Here, Stream, WorkEvent
from daemon.engine.batch.upload import upload
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.forward import Repeated
from daemon.engine.model.backend import Backend
from daemon.engine.model.model import CausalModel
from daemon.engine.sampler import Drafted, Sampled, SampledTokens, Sampler
from daemon.engine.step.drafts import KeptDraws, kept_of, rows_of
from daemon.engine.step.grammar import SlotGrammars
from daemon.engine.step.scoring import PromptScorer, Scored, score, with_spans
from daemon.engine.swap.link import SwapLink
from daemon.protocol.worker import Plan, Reply
from daemon.state.batch import Batch
from daemon.state.request import FinishReason
from daemon.wire.columns import Column, int32

_NOT_NUMBERS = "the model's output for this answer is not a number: no token can be sampled from it"

_NO_DRAWS = SampledTokens(int32(), None, np.zeros(0, np.intp))


log = logging.getLogger(__name__)


def computed(
    batch: FlatBatch, compute: Callable[[FlatBatch], torch.Tensor], alone: bool = True
) -> torch.Tensor:
    """Logits or states [R, ...] of a batch's sampled tokens, whole or, out of memory, row by row.

    Raises torch.OutOfMemoryError where a single row does not fit either, where layers are
    recurrent: some of their states have moved on, and where it is not computed `alone`: other ranks
    have the memory, and go on.
    """
    try:
        return compute(batch)
    except torch.OutOfMemoryError as error:
        if batch.state_pages.size or not alone:
            raise
        log.warning("a step of %d tokens is computed row by row: %s", len(batch.tokens), error)
    # Outside of `except`: the exception's traceback keeps the first try's tensors alive.
    torch.cuda.empty_cache()
    rows = (part(batch, row, 0, int(count)) for row, count in enumerate(batch.counts))
    return torch.cat([compute(row).clone() for row in rows])


class Begun:
    """A step on its way: its work is queued, its answer not read."""

    def __init__(self, done: WorkEvent, answer: Callable[[], Reply]) -> None:
        self._done = done
        self._answer = answer
        self._reply: Reply | None = None
        self._asking = threading.Lock()

    def finish(self) -> Reply:
        """Wait until it is done, and its answer. Any thread may ask, more than one too."""
        with self._asking:
            if self._reply is None:
                self._done.synchronize()
                self._reply = self._answer()
            return self._reply


@dataclass(slots=True)
class _Before:
    """State of the step before, as the next one needs it."""

    begun: Begun | None = None
    done_s: float = 0.0  # when it was done


@dataclass(frozen=True, slots=True)
class Engine:
    """All that a step reads and changes.

    `begin` is called by one thread, in the order of the plans; `finish` in the same order.
    """

    model: CausalModel
    cache: PagedKV
    slots: Slots
    sampler: Sampler
    grammars: SlotGrammars
    scorer: PromptScorer
    backend: Backend
    swap: SwapLink | None = None
    stream: Stream = field(default_factory=Here)  # what steps are computed on
    _before: _Before = field(default_factory=_Before)

    def run(self, plan: Plan, came_s: float | None = None) -> Reply:
        """Apply a plan and answer it."""
        return self.begin(plan, came_s).finish()

    def begin(self, plan: Plan, came_s: float | None = None) -> Begun:
        """Apply a plan in its order (left, joined, tables, copies, step), as far as queueing it.

        `came_s`: when it came (`time.perf_counter`), now if not given. Swap copies begin at once
        and go on beside the step; the time for which this thread waits for those that the step
        awaits counts as idle.
        """
        came_s = time.perf_counter() if came_s is None else came_s
        before = self._before.begun
        if before and (self.grammars.any or any(join.sampling.grammar for join in plan.joins)):
            before.finish()  # the grammar's masks depend on the tokens before
        batch, waited_s = plan.batch, self._apply(plan)
        if batch.times > 1:
            return self._begin_several(batch, (came_s, waited_s))
        rows = rows_of(plan, self.slots, self.model.alike)
        flat = self._flat(rows.batch, rows.inputs)
        logits, scored = self._compute(flat)
        drawn = self._draw(flat, logits, rows.drafted)
        kept = None
        if drawn is not None and drawn.kept is not None and rows.drafted is not None:
            kept = kept_of(rows.drafted, drawn.kept)
            lasts = kept.rows[kept.lasts]
            self.slots.take(flat.sampled_slots[lasts].astype(np.int64), drawn.tokens[lasts])
        elif drawn is not None:
            self.slots.take(flat.sampled_slots.astype(np.int64), drawn.tokens)
        done, times = self.stream.record(), (came_s, waited_s)
        begun = Begun(done, lambda: self._answer(batch, flat, drawn, kept, scored, times))
        self.model.experts.after_step()
        self._before.begun = begun
        return begun

    def _apply(self, plan: Plan) -> float:
        """Do what comes before a plan's step; how long copies were waited for (seconds)."""
        batch = plan.batch
        waited_s = self._swap(batch)
        self._change_seats(plan)
        self.slots.change_tables(batch)
        self.cache.copy(batch.copy_sources, batch.copy_targets)
        return waited_s

    def _flat(self, batch: Batch, inputs: Column) -> FlatBatch:
        """A batch as one row of tokens, whose places in blocks are noted where they are packed."""
        flat = flatten(batch, inputs, self.slots.block_table, *self.cache.shape)
        if self.swap is not None and self.swap.pool.compressed:
            for blocks in (flat.blocks, *(blocks for blocks, _ in flat.further)):
                self.cache.fill(blocks, flat.offsets)
        return flat

    def _begin_several(self, batch: Batch, began: tuple[float, float]) -> Begun:
        """Compute a multi-step plan, though rows end meanwhile: the next plan may be made already,
        and continues behind all of it.

        Raises ValueError where not all rows decode, or a device begins a step before it has read
        the last.
        """
        if self.slots.last_token.is_cuda:
            raise ValueError("a device that begins a step before it has read the last takes one")
        check(batch)
        repeated = None if self.grammars.any else self._repeated(batch)
        if repeated is not None:
            reply = self._answer_repeated(batch, repeated, began)
        else:
            reply = self._one_by_one(batch, began)
        return Begun(self.stream.record(), lambda: reply)

    def _repeated(self, batch: Batch) -> Repeated | None:
        """Run a multi-step program where no row asks for scores; None where there is none."""
        if self.swap is not None and self.swap.pool.compressed:  # each fill has to be noted
            return None
        flat = flatten(batch, int32(), self.slots.block_table, *self.cache.shape)
        if not self.model.compiles(flat):
            return None
        rules = self.sampler.rules(batch.slots, batch.starts + 1, batch.times)
        if rules is None:
            return None
        return self.model.repeated(flat, rules)

    def _answer_repeated(
        self, batch: Batch, repeated: Repeated, began: tuple[float, float]
    ) -> Reply:
        tokens, shape = repeated.tokens, repeated.tokens.shape
        self.slots.take(batch.slots.astype(np.int64), torch.from_numpy(tokens[:, -1]))
        self.sampler.took(batch.slots, batch.times)
        rows = np.repeat(batch.slots, shape[1])
        reasons = self.slots.reasons(rows, tokens.ravel()).reshape(shape)
        reasons[repeated.broken] = FinishReason.ERROR
        kept = KeptTokens.of(reasons)
        failed = kept.firsts[kept.reasons == FinishReason.ERROR].tolist()
        elapsed_s, idle_s = self._times(*began)
        return Reply(
            step=batch.step,
            tokens=kept.of_all(tokens),
            reasons=kept.reasons,
            elapsed_s=elapsed_s,
            idle_s=idle_s,
            errors=tuple((first, _NOT_NUMBERS) for first in failed),
            counts=kept.counts.astype(np.int32),
        )

    def _one_by_one(self, batch: Batch, began: tuple[float, float]) -> Reply:
        """Compute each step of a multi-step plan as a plan of its own; the joined reply."""
        (came_s, waited_s), replies = began, list[Reply]()
        for number in range(batch.times):
            replies.append(self.run(plan_of(batch, number), came_s))
            came_s = self._before.done_s
        return joined(replies, waited_s)

    def prepare(self) -> bool:
        """Prepare something for later steps; False where nothing is left to do."""
        return self.model.prepare() or self.model.experts.exchange()

    def _change_seats(self, plan: Plan) -> None:
        """Sequences leave their slots and others take them."""
        for slot in plan.batch.left_slots.tolist():
            self.sampler.leave(slot)
            self.grammars.leave(slot)
            self.scorer.leave(slot)
        self.slots.join(plan.joins)
        for join in plan.joins:
            self.sampler.join(join.slot, join.sampling, join.num_prompt_tokens, join.history)
            self.grammars.join(join)
            self.scorer.join(join)

    def _swap(self, batch: Batch) -> float:
        """Begin a plan's swap copies; how long it then waited for those it awaits (seconds)."""
        if self.swap is not None:
            self.swap.order(batch)
            return self.swap.wait(batch.awaits)
        if len(batch.out_blocks) or len(batch.in_blocks):
            raise ValueError("the plan swaps blocks, but there is no host pool")
        return 0.0

    def _compute(self, flat: FlatBatch) -> tuple[torch.Tensor | None, Scored]:
        """Logits [R, vocab] of the sampled tokens, and scores of prompts."""
        if not len(flat.tokens):
            return None, Scored([])
        parts, alone = (self.slots, self.cache, self.backend), self.backend.ranks is None
        spans = self.scorer.spans(flat.slots, flat)
        if not spans:
            logits = computed(flat, lambda rows: self.model.logits(rows, *parts), alone)
            return logits, Scored([])
        wider = with_spans(flat, spans)
        tokens = wider.sampled_tokens
        states = computed(wider, lambda rows: self.model.states(rows, *parts), alone)
        scored = score(spans, tokens, states, self.model.head)
        if not len(flat.sampled_tokens):
            return None, scored
        index = upload(np.searchsorted(tokens, flat.sampled_tokens), states.device)
        return self.model.head(states[index]), scored

    def _draw(
        self, flat: FlatBatch, logits: torch.Tensor | None, drafted: Drafted | None
    ) -> Sampled | None:
        """Sample the rows' tokens; None where none is sampled."""
        if logits is None or not len(flat.sampled_slots):
            return None
        allowed = self.grammars.allowed(flat.sampled_slots, flat.sampled_positions)
        asked = flat.sampled_slots, flat.sampled_positions, allowed, drafted
        return self.sampler.sample(logits, *asked)

    def _answer(
        self,
        batch: Batch,
        flat: FlatBatch,
        drawn: Sampled | None,
        kept: KeptDraws | None,
        scored: Scored,
        began: tuple[float, float],
    ) -> Reply:
        """The reply of a step that is done; `began`: when its plan came, and how long it waited."""
        elapsed_s, idle_s = self._times(*began)
        draws = _NO_DRAWS if drawn is None else drawn.read()
        slots, counts = flat.sampled_slots, int32()
        if kept is not None:
            slots, draws, counts = kept.slots(flat), kept.draws(draws), kept.counts
        reasons = self.slots.reasons(slots, draws.tokens)
        errors = dict(self.grammars.take(slots, draws.tokens))
        errors |= dict.fromkeys(draws.broken.tolist(), _NOT_NUMBERS)
        reasons[list(errors)] = FinishReason.ERROR
        if kept is not None:
            reasons = reasons[kept.lasts]
        return Reply(
            step=batch.step,
            tokens=draws.tokens,
            reasons=reasons,
            elapsed_s=elapsed_s,
            idle_s=idle_s,
            logprobs=draws.logprobs,
            errors=tuple(errors.items()),
            prompts=scored.read(),
            counts=counts,
        )

    def _times(self, came_s: float, waited_s: float) -> tuple[float, float]:
        """(time of a step that is done now, time that nothing was computed before it)."""
        done_s = time.perf_counter()
        before_s, self._before.done_s = self._before.done_s, done_s
        idle_s = max(0.0, came_s - before_s) if before_s else 0.0
        elapsed_s = done_s - max(came_s, before_s) - waited_s
        if self.backend.ranks is not None:
            self.backend.ranks.stepped(elapsed_s)
        return elapsed_s, idle_s + waited_s

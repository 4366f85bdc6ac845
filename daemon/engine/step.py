"""Computes plans: the worker's state, and what one step does to it."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from daemon.batch import Batch
from daemon.engine.backend import Backend
from daemon.engine.grammar import SlotGrammars
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch, flatten
from daemon.engine.model import Model
from daemon.engine.protocol import Logprobs, Plan, Reply
from daemon.engine.sampler import Sampler
from daemon.engine.scoring import PromptScorer
from daemon.engine.shrink import logits_of
from daemon.engine.slots import Slots
from daemon.engine.swap import SwapLink
from daemon.request import FinishReason
from daemon.wire.columns import Int32, int32

_NOT_NUMBERS = "the model's output for this answer is not a number: nothing can be drawn from it"


@dataclass(frozen=True, slots=True)
class Engine:
    """All that a step reads and changes."""

    model: Model
    cache: KVCache
    slots: Slots
    sampler: Sampler
    grammars: SlotGrammars
    scorer: PromptScorer
    backend: Backend
    swap: SwapLink | None = None

    def run(self, plan: Plan, idle_s: float = 0.0) -> Reply:
        """Apply a plan in its order (left, joined, tables, copies, step) and answer it.

        Swap copies begin at once and go on beside the step; the time for which it waits for those
        that it awaits counts as idle.
        """
        began = time.perf_counter()
        batch = plan.batch
        waited_s = self._swap(batch)
        for slot in batch.left_slots.tolist():
            self.sampler.leave(slot)
            self.grammars.leave(slot)
            self.scorer.leave(slot)
        self.slots.join(plan.joins)
        for join in plan.joins:
            self.sampler.join(join.slot, join.sampling, join.num_prompt_tokens, join.history)
            self.grammars.join(join)
            self.scorer.join(join)
        self.slots.change_tables(batch)
        self.cache.copy(batch.copy_sources, batch.copy_targets)
        flat = flatten(batch, plan.inputs, self.slots, self.cache.block_size)
        if self.swap is not None and self.swap.pool.compressed:
            self.cache.fill(flat.blocks, flat.offsets)
        tokens, logprobs, broken = self._draw(flat)
        prompts = self.scorer.score(batch.slots, flat, self._logits)
        self.slots.last_token[flat.sampled_slots] = tokens
        reasons = self.slots.reasons(flat.sampled_slots, tokens)
        errors = dict(self.grammars.take(flat.sampled_slots, tokens))
        errors |= dict.fromkeys(broken, _NOT_NUMBERS)
        reasons[list(errors)] = FinishReason.ERROR
        return Reply(
            step=batch.step,
            tokens=tokens,
            reasons=reasons,
            elapsed_s=time.perf_counter() - began - waited_s,
            idle_s=idle_s + waited_s,
            logprobs=logprobs,
            errors=tuple(errors.items()),
            prompts=prompts,
        )

    def _swap(self, batch: Batch) -> float:
        """Begin a plan's swap copies; how long it then waited for those it awaits (seconds)."""
        if self.swap is not None:
            self.swap.order(batch)
            return self.swap.wait(batch.awaits)
        if len(batch.out_blocks) or len(batch.in_blocks):
            raise ValueError("the plan swaps blocks, but there is no host pool")
        return 0.0

    def _draw(self, flat: FlatBatch) -> tuple[Int32, Logprobs | None, list[int]]:
        """Compute the batch and draw its sampled rows' tokens [R]; the rows that have none."""
        if not len(flat.tokens):
            return int32(), None, []
        logits = self._logits(flat)
        if not len(flat.sampled_slots):
            return int32(), None, []
        # On a GPU the model still computes while the grammars are asked.
        allowed = self.grammars.allowed(flat.sampled_slots, flat.sampled_positions)
        drawn = self.sampler.sample(logits, flat.sampled_slots, flat.sampled_positions, allowed)
        tokens = drawn.tokens.cpu().numpy().astype(np.int32)
        return tokens, drawn.logprobs, drawn.broken.tolist()

    def _logits(self, flat: FlatBatch) -> torch.Tensor:
        return logits_of(self.model, flat, self.cache, self.backend)

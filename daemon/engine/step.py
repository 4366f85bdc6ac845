"""Computes plans: the worker's state, and what one step does to it."""

import time
from dataclasses import dataclass

import numpy as np

from daemon.batch import Batch
from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch, flatten
from daemon.engine.model import Model
from daemon.engine.protocol import Logprobs, Plan, Reply
from daemon.engine.sampler import Sampler
from daemon.engine.slots import Slots
from daemon.engine.swap import SwapLink
from daemon.wire.columns import Int32, int32


@dataclass(frozen=True, slots=True)
class Engine:
    """All that a step reads and changes."""

    model: Model
    cache: KVCache
    slots: Slots
    sampler: Sampler
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
        self.slots.join(plan.joins)
        for join in plan.joins:
            self.sampler.join(join.slot, join.sampling, join.num_prompt_tokens, join.history)
        self.slots.change_tables(batch)
        self.cache.copy(batch.copy_sources, batch.copy_targets)
        flat = flatten(batch, plan.inputs, self.slots, self.cache.block_size)
        if self.swap is not None and self.swap.pool.compressed:
            self.cache.fill(flat.blocks, flat.offsets)
        tokens, logprobs = self._draw(flat)
        self.slots.last_token[flat.sampled_slots] = tokens
        return Reply(
            step=batch.step,
            tokens=tokens,
            reasons=self.slots.reasons(flat.sampled_slots, tokens),
            elapsed_s=time.perf_counter() - began - waited_s,
            idle_s=idle_s + waited_s,
            logprobs=logprobs,
        )

    def _swap(self, batch: Batch) -> float:
        """Begin a plan's swap copies; how long it then waited for those it awaits (seconds)."""
        if self.swap is not None:
            self.swap.order(batch)
            return self.swap.wait(batch.awaits)
        if len(batch.out_blocks) or len(batch.in_blocks):
            raise ValueError("the plan swaps blocks, but there is no host pool")
        return 0.0

    def _draw(self, flat: FlatBatch) -> tuple[Int32, Logprobs | None]:
        """Compute the batch and draw its sampled rows' tokens [R]."""
        if not len(flat.tokens):
            return int32(), None
        logits = self.model.logits(flat, self.cache, self.backend)
        if not len(flat.sampled_slots):
            return int32(), None
        drawn = self.sampler.sample(logits, flat.sampled_slots, flat.sampled_positions)
        return drawn.tokens.cpu().numpy().astype(np.int32), drawn.logprobs

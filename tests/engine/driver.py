"""A small, plain driver of an engine: it owns blocks and slots and writes the plans."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daemon.engine.step.step import Engine
from daemon.protocol.worker import Join, Plan, Ready
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import int32

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass
class Running:
    """One sequence: its tokens, those computed, and its slot."""

    slot: int
    tokens: list[int]
    num_prompt_tokens: int
    blocks: list[int]
    num_computed: int = 0
    sampling: SamplingParams = GREEDY
    reasons: list[int] = field(default_factory=list)

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


@dataclass
class Driver:
    """Plans steps of chosen sequences; blocks come from a list that is never in order."""

    block_size: int
    free_blocks: list[int]
    step: int = 0
    joins: list[Join] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    table: list[tuple[int, int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    outs: list[tuple[int, int]] = field(default_factory=list)  # (block, place)
    ins: list[tuple[int, int]] = field(default_factory=list)  # (place, block)
    awaits: int = 0
    num_groups: int = 1  # of layers: each has blocks of its own, so many numbers apart
    apart: int = 0
    width: int = 0  # cells of a row for each
    num_state_pages: int = 0  # behind these cells, as many for a sequence's states
    first_state: int = 0  # the page of slot 0's first: each slot has its own
    states: list[tuple[int, int, int]] = field(default_factory=list)

    def fit(self, engine: Engine) -> None:
        """Give sequences blocks for each of an engine's groups of layers."""
        cache, num_cells = engine.cache, engine.slots.block_table.shape[1]
        kinds = cache.num_groups, cache.state_pages
        width = cache.row_blocks(num_cells) if cache.num_groups else 0
        self.fit_pages(cache.num_blocks, kinds, len(engine.slots.block_table), width)

    def fit_ready(self, ready: Ready, num_slots: int, width: int) -> None:
        """The same of a worker that is ready; `width`: cells of a group in a row of the table."""
        num_groups = len(ready.windows) if ready.state_pages else max(len(ready.windows), 1)
        self.fit_pages(ready.num_blocks, (num_groups, ready.state_pages), num_slots, width)

    def fit_pages(self, num_pages: int, kinds: tuple[int, int], num_slots: int, width: int) -> None:
        """The same of so many pages; `kinds`: groups, and pages of a sequence's states."""
        self.num_groups, self.num_state_pages = kinds
        num_blocks = num_pages - self.num_state_pages * num_slots
        self.first_state = num_blocks
        self.apart = num_blocks // max(self.num_groups, 1)
        self.free_blocks[:] = [block for block in self.free_blocks if block < self.apart]
        self.width = width

    def take_out(self, running: Running) -> None:
        """Send a sequence's pages to the host pool, to places from 0 on."""
        pages = [
            group * self.apart + block
            for group in range(self.num_groups)
            for block in running.blocks
        ]
        pages += self._state_pages(running.slot)
        self.outs = [(page, place) for place, page in enumerate(pages)]

    def bring_back(self, running: Running, spare_slot: int) -> None:
        """Bring them back elsewhere: into free blocks, and into the states of a slot not in use."""
        running.blocks = [self.free_blocks.pop() for _ in running.blocks]
        self.table += [(running.slot, index, block) for index, block in enumerate(running.blocks)]
        pages = [
            group * self.apart + block
            for group in range(self.num_groups)
            for block in running.blocks
        ]
        states = self._state_pages(spare_slot)
        self._name_states(running.slot, states)
        self.ins = [(place, page) for place, page in enumerate(pages + states)]
        self.awaits = self.step + 1  # this very plan's

    def _state_pages(self, slot: int) -> list[int]:
        first = self.first_state + slot * self.num_state_pages
        return list(range(first, first + self.num_state_pages))

    def _name_states(self, slot: int, pages: list[int]) -> None:
        cell = self.num_groups * self.width
        self.states += [(slot, cell + number, page) for number, page in enumerate(pages)]

    def add(
        self, slot: int, prompt: list[int], sampling: SamplingParams = GREEDY, shared: Any = ()
    ) -> Running:
        """A sequence takes a slot; `shared` blocks already hold the prompt's first tokens."""
        history = int32(prompt) if sampling.needs_history else int32()
        self.joins.append(Join(slot, slot + 100, len(prompt), sampling, history))
        running = Running(slot, list(prompt), len(prompt), list(shared), sampling=sampling)
        running.num_computed = len(running.blocks) * self.block_size
        self._name_states(slot, self._state_pages(slot))
        self.table += [(slot, index, block) for index, block in enumerate(running.blocks)]
        return running

    def back(self, slot: int, gone: Running, places: list[int]) -> Running:
        """A sequence that left takes a slot again; its blocks come back from the host pool."""
        running = self.add(slot, gone.tokens, gone.sampling)
        running.num_computed = gone.num_computed
        self.grow(running, gone.num_computed)
        self.ins += zip(places, running.blocks, strict=True)
        return running

    def leave(self, running: Running) -> None:
        """Give a sequence's slot back (not its blocks)."""
        self.left.append(running.slot)

    def plan(self, work: list[tuple[Running, int]], drafts: list[list[int]] | None = None) -> Plan:
        """One step of `(sequence, tokens)` rows; `drafts` of each, if anybody drafts."""
        drafts = drafts or []
        self.step += 1
        inputs: list[int] = []
        rows = []
        for running, count in work:
            start, end = running.num_computed, running.num_computed + count
            self.grow(running, end + len(drafts[len(rows)] if drafts else ()))
            known = start < running.num_prompt_tokens
            if known:
                inputs += running.tokens[start:end]
            rows.append((running.slot, start, count, end >= len(running.tokens), known))
        slots, starts, counts, samples, fed = zip(*rows, strict=True) if rows else ((),) * 5
        firsts = [group * self.apart for group in range(self.num_groups)]
        table = [
            (slot, group * self.width + index, block + first)
            for group, first in enumerate(firsts)
            for slot, index, block in self.table
        ] + self.states
        batch = Batch(
            instance=0,
            step=self.step,
            slots=int32(slots),
            starts=int32(starts),
            counts=int32(counts),
            samples=np.array(samples, np.uint8),
            fed=np.array(fed, np.uint8),
            table_slots=int32([change[0] for change in table]),
            table_indices=int32([change[1] for change in table]),
            table_blocks=int32([change[2] for change in table]),
            copy_sources=int32([copy[0] + first for first in firsts for copy in self.copies]),
            copy_targets=int32([copy[1] + first for first in firsts for copy in self.copies]),
            left_slots=int32(self.left),
            joined_slots=int32([join.slot for join in self.joins]),
            joined_sequences=np.array([join.sequence for join in self.joins], np.int64),
            out_blocks=int32([pair[0] for pair in self.outs]),
            out_places=int32([pair[1] for pair in self.outs]),
            in_places=int32([pair[0] for pair in self.ins]),
            in_blocks=int32([pair[1] for pair in self.ins]),
            awaits=self.awaits,
            drafts=int32([len(one) for one in drafts]),
        )
        named = int32([token for one in drafts for token in one])
        plan = Plan(batch, int32(inputs), tuple(self.joins), named)
        self.joins, self.left, self.table, self.copies, self.states = [], [], [], [], []
        self.outs, self.ins, self.awaits = [], [], 0
        return plan

    def take(self, work: list[tuple[Running, int]], reply: Any) -> None:
        """Append what the step drew."""
        assert reply.step == self.step
        tokens, reasons = iter(reply.tokens.tolist()), iter(reply.reasons.tolist())
        counts = iter(reply.counts.tolist() if reply.counts.size else [1] * reply.reasons.size)
        for running, count in work:
            running.num_computed += count
            if running.num_computed >= len(running.tokens):
                drawn = [next(tokens) for _ in range(next(counts))]
                running.tokens += drawn
                running.num_computed += len(drawn) - 1
                running.reasons += [0] * (len(drawn) - 1) + [next(reasons)]
        assert next(tokens, None) is next(counts, None) is next(reasons, None) is None

    def grow(self, running: Running, num_tokens: int) -> None:
        """Give a sequence blocks for a total of tokens."""
        while len(running.blocks) * self.block_size < num_tokens:
            block = self.free_blocks.pop()
            self.table.append((running.slot, len(running.blocks), block))
            running.blocks.append(block)

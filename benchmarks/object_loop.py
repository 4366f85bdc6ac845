"""What the Core is compared with: the same bookkeeping, written as a loop over objects.

One object a sequence, as most engines do it: counts advanced, blocks found, owners counted, a
prefix index kept, columns of the next step built, ended sequences told. No preemption, no fences,
no n > 1, no journal of actions: it does less than the Core, never more.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from daemon.core.values.events import RequestArrived, StepDone
from daemon.memory.hashing import split_hashes
from daemon.state.batch import Batch
from daemon.wire.columns import int32


@dataclass(slots=True)
class Running:
    """One sequence."""

    id: int
    prompt: int
    limit: int
    hashes: list[bytes]
    slot: int = -1
    computed: int = 0
    known: int = 0
    delivered: int = 0
    blocks: list[int] = field(default_factory=list)


class ObjectLoop:
    """A scheduler of one instance."""

    def __init__(self, num_blocks: int, block_size: int, max_running: int, budget: int) -> None:
        self.block_size = block_size
        self.budget = budget
        self.owners = [0] * num_blocks
        self.free = list(range(num_blocks))
        self.index: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}
        self.idle: dict[int, None] = {}
        self.slots = list(range(max_running))
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.sampled: list[Running] = []
        self.step = 0
        self.left: list[int] = []

    def arrive(self, event: RequestArrived) -> None:
        """Queue a request."""
        limit = event.num_prompt_tokens + event.max_tokens
        hashes = split_hashes(event.hashes)
        self.waiting.append(
            Running(
                event.request, event.num_prompt_tokens, limit, hashes, known=event.num_prompt_tokens
            )
        )

    def answer(self, event: StepDone) -> tuple[list[tuple[int, int]], Batch]:
        """Take a step's answer: (sequence, reason) of each token, and the next step."""
        tokens = []
        for sequence, drawn in zip(self.sampled, event.reasons.tolist(), strict=True):
            sequence.delivered += 1
            at_limit = sequence.prompt + sequence.delivered >= sequence.limit
            reason = drawn or (2 if at_limit else 0)
            tokens.append((sequence.id, reason))
            if reason:
                self._leave(sequence)
        return tokens, self.schedule()

    def schedule(self) -> Batch:
        """Build the next step."""
        slots, starts, counts, samples, fed = [], [], [], [], []
        table: list[tuple[int, int, int]] = []
        joined: list[Running] = []
        sampled = []
        budget = self.budget
        rows = list(self.running)
        while True:
            for sequence in rows:
                count = min(sequence.known - sequence.computed, budget)
                if count <= 0:
                    continue
                need = -(-(sequence.computed + count) // self.block_size)
                while len(sequence.blocks) < need:
                    block = self._allocate()
                    table.append((sequence.slot, len(sequence.blocks), block))
                    sequence.blocks.append(block)
                slots.append(sequence.slot)
                starts.append(sequence.computed)
                counts.append(count)
                fed.append(sequence.computed < sequence.prompt)
                sequence.computed += count
                samples.append(sequence.computed == sequence.known)
                if sequence.computed == sequence.known:
                    sequence.known += 1
                    sampled.append(sequence)
                if count > 1:
                    self._seal(sequence)
                budget -= count
            if not self.waiting or not self.slots or budget <= 0:
                break
            rows = [self._join(self.waiting.popleft(), table)]
            joined += rows
        self.sampled = sampled
        self.step += 1
        changes = np.array(table, np.int32).reshape(-1, 3)
        batch = Batch(
            0,
            self.step,
            int32(slots),
            int32(starts),
            int32(counts),
            np.array(samples, np.uint8),
            np.array(fed, np.uint8),
            changes[:, 0],
            changes[:, 1],
            changes[:, 2],
            int32(),
            int32(),
            int32(self.left),
            int32([one.slot for one in joined]),
            np.array([one.id for one in joined], np.int64),
        )
        self.left = []
        return batch

    def _join(self, sequence: Running, table: list[tuple[int, int, int]]) -> Running:
        sequence.slot = self.slots.pop()
        for digest in sequence.hashes[: (sequence.known - 1) // self.block_size]:
            block = self.index.get(digest)
            if block is None:
                break
            if not self.owners[block]:
                del self.idle[block]
            self.owners[block] += 1
            table.append((sequence.slot, len(sequence.blocks), block))
            sequence.blocks.append(block)
        sequence.computed = len(sequence.blocks) * self.block_size
        self.running.append(sequence)
        return sequence

    def _leave(self, sequence: Running) -> None:
        self.running.remove(sequence)
        self.slots.append(sequence.slot)
        self.left.append(sequence.slot)
        for block in reversed(sequence.blocks):
            self.owners[block] -= 1
            if not self.owners[block]:
                if block in self.names:
                    self.idle[block] = None
                else:
                    self.free.append(block)

    def _allocate(self) -> int:
        if self.free:
            block = self.free.pop()
        else:
            block = next(iter(self.idle))
            del self.idle[block]
            del self.index[self.names.pop(block)]
        self.owners[block] = 1
        return block

    def _seal(self, sequence: Running) -> None:
        for number in range(min(sequence.computed // self.block_size, len(sequence.hashes))):
            digest, block = sequence.hashes[number], sequence.blocks[number]
            if digest not in self.index and block not in self.names:
                self.index[digest] = block
                self.names[block] = digest

"""Sequences in two workers whose pools hold about two of them: they leave and come back as they
must, in every way there is. The steps are written here; the workers are real.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from daemon.protocol.worker import Copied, Reply
from tests.engine.driver import Running
from tests.engine.transfer.linked_workers import Linked, Two

RECOMPUTED, SWAPPED, SENT, SENT_SWAPPED = "recomputed", "swapped", "sent", "sent while swapped"
NUM_BLOCKS, NUM_PLACES, NUM_SLOTS = 10, 40, 4
_MOST_TOKENS = 20  # of a row


@dataclass(eq=False)
class Going:
    """One sequence: where it is, and how long it becomes."""

    running: Running
    length: int
    places: list[int] = field(default_factory=list)
    """Its blocks in the host pool; none where it waits to be computed from the start."""


@dataclass
class Side:
    """A worker, and who runs or waits there."""

    linked: Linked
    number: int
    running: list[Going] = field(default_factory=list)
    waiting: deque[Going] = field(default_factory=deque)
    slots: list[int] = field(default_factory=lambda: list(range(NUM_SLOTS)))
    places: list[int] = field(default_factory=lambda: list(range(NUM_PLACES)))

    @property
    def free_blocks(self) -> list[int]:
        """Free blocks of the device's pool."""
        return self.linked.plans.free_blocks

    def has_room(self, one: Running, count: int) -> bool:
        """Whether there are blocks for more tokens of a sequence."""
        needed = -(-(one.num_computed + count) // self.linked.plans.block_size)
        return needed - len(one.blocks) <= len(self.free_blocks)

    def run(self, work: list[tuple[Running, int]], copies: bool = False) -> None:
        """One step, to the end of its copies."""
        self.linked.worker.send(self.linked.plans.plan(work))
        self.linked.plans.take(work, self.linked.next(Reply))
        if copies:
            self.linked.next(Copied)

    def leave(self, one: Going) -> None:
        """Its slot and its blocks are free for the next plan."""
        self.running.remove(one)
        self.linked.plans.leave(one.running)
        self.slots.append(one.running.slot)
        self.free_blocks[:0] = one.running.blocks

    def swap_out(self, one: Going) -> None:
        """Copy its blocks to the host pool."""
        one.places = [self.places.pop() for _ in one.running.blocks]
        self.linked.plans.outs = list(zip(one.running.blocks, one.places, strict=True))
        self.run([], copies=True)

    def give_places(self, one: Going) -> None:
        """Free its blocks in the host pool."""
        self.places += one.places
        one.places = []

    def admit(self) -> None:
        """Let those that wait run, in their order, as long as there is room."""
        plans = self.linked.plans
        while self.waiting and self.slots:
            one = self.waiting[0]
            if len(self.free_blocks) < max(len(one.places), 1):
                return
            self.running.append(self.waiting.popleft())
            if one.places:
                one.running = plans.back(self.slots.pop(0), one.running, one.places)
                plans.awaits = plans.step + 1
                self.run([], copies=True)
                self.give_places(one)
            else:
                one.running = plans.add(self.slots.pop(0), one.running.tokens)


class ShortMemory:
    """Some prompts and their greedy answers; `happened` counts who left how, by worker."""

    def __init__(self, two: Two, prompts: list[list[int]], num_outputs: int, seed: int) -> None:
        self.happened: Counter[tuple[int, str]] = Counter()
        self._two = two
        self._chance = random.Random(seed)
        self._sides = Side(two.here, 0), Side(two.there, 1)
        self._all = [
            Going(Running(-1, list(prompt), len(prompt), []), len(prompt) + num_outputs)
            for prompt in prompts
        ]
        for index, one in enumerate(self._all):
            self._sides[index % 2].waiting.append(one)

    def texts(self) -> list[list[int]]:
        """Every sequence's tokens, prompt and answer."""
        while any(side.running or side.waiting for side in self._sides):
            for side in self._sides:
                self._step(side)
        for side in self._sides:
            side.run([])
            assert sorted(side.free_blocks) == list(range(NUM_BLOCKS)), "blocks are lost"
            assert len(side.places) == NUM_PLACES, "places are lost"
        return [one.running.tokens for one in self._all]

    def _step(self, side: Side) -> None:
        side.admit()
        work: list[tuple[Running, int]] = []
        for one in list(side.running):
            if one not in side.running:
                continue  # it left for one before it
            running = one.running
            left = len(running.tokens) - running.num_computed
            count = min(left, self._chance.randint(1, _MOST_TOKENS))
            while not side.has_room(running, count) and one in side.running:
                self._preempt(side, side.running[-1])
            if one in side.running:
                side.linked.plans.grow(running, running.num_computed + count)
                work.append((running, count))
        if work:
            side.run(work)
        for one in list(side.running):
            if len(one.running.tokens) >= one.length:
                side.leave(one)

    def _preempt(self, side: Side, one: Going) -> None:
        """It leaves in the way that was seen least often here, of those that can be."""
        there, count = self._sides[1], len(one.running.blocks)
        ways = [RECOMPUTED]
        if count and len(side.places) >= count:
            ways.append(SWAPPED)
            if side is not there and there.slots and len(there.free_blocks) >= count:
                ways += [SENT, SENT_SWAPPED]
        way = min(ways, key=lambda name: self.happened[side.number, name])
        self.happened[side.number, way] += 1
        if way in (SWAPPED, SENT_SWAPPED):
            side.swap_out(one)
        if way in (SENT, SENT_SWAPPED):
            self._send(side, one)
        else:
            side.leave(one)
            side.waiting.append(one)

    def _send(self, side: Side, one: Going) -> None:
        """From the host pool where it is there, and to the other worker's device."""
        there, was = self._sides[1], one.running
        targets = [there.free_blocks.pop() for _ in was.blocks]
        sources = one.places or was.blocks
        swapped = bool(one.places)
        number = self._two.send(sources, targets, was.num_computed, from_host=swapped)
        overs = self._two.overs(number)
        assert [over.num_right for over in overs] == [len(targets)] * 2, overs
        side.leave(one)
        side.give_places(one)
        one.running = there.linked.plans.add(there.slots.pop(0), was.tokens, shared=targets)
        one.running.num_computed = was.num_computed
        there.running.append(one)

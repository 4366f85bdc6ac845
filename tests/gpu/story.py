"""Plans at random, made ahead of the tokens they lead to: for steps that are in flight together.

Sequences come, share prompts, leave for the host pool and come back, and go for good. What a plan
says follows from the seed and from counts, never from what was drawn, so one story can be told to
several engines, one step after another or two in flight, and must come to the same.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from daemon.protocol.worker import Plan, Reply
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver, Running

OUTPUTS = 12
"""Tokens after which a sequence may go."""
LONGEST_PROMPT = 60
ROOM_BLOCKS = 16
"""Free blocks below which nobody comes: more than all rows of a step may ask for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The state of an engine for a story."""

    vocab_size: int
    block_size: int
    num_blocks: int
    max_slots: int
    num_places: int


@dataclass(frozen=True, slots=True)
class Kind:
    """How some of a story's sequences are drawn; those that may not be swapped stay."""

    sampling: SamplingParams
    swapped: bool = True


Unknown = list[tuple[Running, int]]
"""The sequences whose tokens a plan in flight will bring, and their places."""


class Story:
    """Plans one after another; `landed` gives the tokens of each, in order, when they are known.

    A plan may be asked for while the one before it is still in flight.
    """

    def __init__(self, seed: int, sizes: Sizes, kinds: tuple[Kind, ...]) -> None:
        self._chooser = random.Random(seed)
        self._sizes, self._kinds = sizes, kinds
        blocks = list(range(sizes.num_blocks))
        self._chooser.shuffle(blocks)
        self._driver = Driver(sizes.block_size, blocks)
        self._slots = list(range(sizes.max_slots))
        self._places = list(range(sizes.num_places))
        self._running: list[tuple[Running, Kind]] = []
        self._away: list[tuple[Running, Kind, list[int]]] = []
        self._fenced: list[tuple[int, list[int], list[int]]] = []  # plan, blocks, places
        self._shared: set[int] = set()
        self._flights: deque[Unknown] = deque()
        self._num_come = 0
        self.num_swaps = self.num_forks = 0

    def plan(self, no_more: bool = False) -> Plan:
        """The next plan; with `no_more`, everybody goes."""
        if no_more:
            for running, _kind in self._running:
                self._driver.leave(running)
            self._running = []
            return self._driver.plan([])
        self._unfence()
        self._come()
        work = self._work()
        busy = {id(running) for running, _count in work}
        for running, kind in list(self._running):
            if id(running) not in busy and self._chooser.random() < 0.3:
                self._go(running, kind)
        plan = self._driver.plan(work)
        unknown: Unknown = []
        for running, count in work:
            running.num_computed += count
            if running.num_computed >= len(running.tokens):
                unknown.append((running, len(running.tokens)))
                running.tokens.append(0)
        self._flights.append(unknown)
        return plan

    def landed(self, reply: Reply) -> None:
        """The oldest plan in flight drew these tokens."""
        for (running, index), token in zip(
            self._flights.popleft(), reply.tokens.tolist(), strict=True
        ):
            running.tokens[index] = token

    def _unfence(self) -> None:
        """Use what copies held from now on: this plan awaits them."""
        if self._fenced and self._chooser.random() < 0.7:
            self._driver.awaits = max(step for step, _, _ in self._fenced)
            for _step, blocks, places in self._fenced:
                self._driver.free_blocks[:0] = blocks
                self._places[:0] = places
            self._fenced = []

    def _come(self) -> None:
        """Somebody comes back, comes with another's prompt, or comes anew."""
        if not self._slots or len(self._driver.free_blocks) < ROOM_BLOCKS + len(self._running):
            return
        chance = self._chooser.random()
        if self._away and chance < 0.4:
            self._come_back()
        elif self._running and chance < 0.55:
            self._fork()
        else:
            length = self._chooser.randrange(1, LONGEST_PROMPT)
            prompt = [self._chooser.randrange(2, self._sizes.vocab_size) for _ in range(length)]
            kind = self._next_kind()
            running = self._driver.add(self._slots.pop(), prompt, kind.sampling)
            self._running.append((running, kind))

    def _next_kind(self) -> Kind:
        kind = self._kinds[self._num_come % len(self._kinds)]
        self._num_come += 1
        # Of the same kind, but with luck of its own.
        values = {name: getattr(kind.sampling, name) for name in SamplingParams.__struct_fields__}
        return replace(kind, sampling=SamplingParams(**values | {"seed": self._num_come}))

    def _come_back(self) -> None:
        gone, kind, places = self._away.pop(self._chooser.randrange(len(self._away)))
        running = self._driver.back(self._slots.pop(), gone, places)
        self._running.append((running, kind))
        # Its first row may be in this very plan, or in a later one.
        self._driver.awaits = self._driver.step + 1
        self._fenced.append((self._driver.step + 1, [], places))

    def _fork(self) -> None:
        """A sequence of the same prompt: full blocks are shared, one filled in part is copied."""
        source, _kind = self._chooser.choice(self._running)
        prompt = source.tokens[: source.num_prompt_tokens]
        computed = len(prompt) - 1
        if not computed or source.num_computed < computed:
            return
        full = computed // self._sizes.block_size
        shared = source.blocks[:full]
        if computed % self._sizes.block_size:
            copy = self._driver.free_blocks.pop()
            self._driver.copies.append((source.blocks[full], copy))
            shared = [*shared, copy]
        self._shared.update(source.blocks[:full])
        kind = self._next_kind()
        running = self._driver.add(self._slots.pop(), prompt, kind.sampling, shared)
        running.num_computed = computed
        self._running.append((running, kind))
        self.num_forks += 1

    def _work(self) -> list[tuple[Running, int]]:
        work = []
        for running, _kind in self._running:
            if self._chooser.random() < 0.75:
                left = len(running.tokens) - running.num_computed
                work.append((running, min(left, self._chooser.randrange(1, 40))))
        return work

    def _go(self, running: Running, kind: Kind) -> None:
        """For good if it has said enough, else to the host pool if it may; with the next plan."""
        if any(join.slot == running.slot for join in self._driver.joins):
            return
        own = [block for block in running.blocks if block not in self._shared]
        if len(running.outputs) >= OUTPUTS:
            self._driver.free_blocks[:0] = own
        else:
            used = -(-running.num_computed // self._sizes.block_size)
            if not kind.swapped or not used or len(self._places) < used:
                return
            places = [self._places.pop() for _ in range(used)]
            self._driver.outs += zip(running.blocks[:used], places, strict=True)
            self._away.append((running, kind, places))
            self._fenced.append((self._driver.step + 1, own, []))
            self.num_swaps += 1
        self._driver.leave(running)
        self._slots[:0] = [running.slot]
        self._running = [pair for pair in self._running if pair[0] is not running]


def told(
    story: Story, begin: Callable[[Plan], Any], num_plans: int, depth: int
) -> Iterator[tuple[Plan, Reply]]:
    """Tell a story with up to `depth` steps in flight; each plan with its answer, in order.

    `begin` starts a plan and returns what has `finish() -> Reply`.
    """
    flying: deque[tuple[Plan, Any]] = deque()
    for number in range(num_plans + 1):
        if len(flying) == depth:
            yield _landed(story, *flying.popleft())
        plan = story.plan(no_more=number == num_plans)
        flying.append((plan, begin(plan)))
    while len(flying) > 1:
        yield _landed(story, *flying.popleft())
    flying.popleft()[1].finish()  # the one in which everybody goes


def _landed(story: Story, plan: Plan, begun: Any) -> tuple[Plan, Reply]:
    reply = begun.finish()
    story.landed(reply)
    return plan, reply

"""The step that is being filled: its rows, its token budget, and where it cuts prompts."""

from dataclasses import dataclass
from itertools import compress

import numpy as np

from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.slots import SlotTable
from daemon.wire.columns import Int32, Slots

LEAST_SHARE = 0.25
"""The least share of the budget for prompts: less would cost more in steps than it saves."""


@dataclass(slots=True, frozen=True)
class Limits:
    """The limits of a step."""

    max_running: int
    max_batch_tokens: int
    prefill_chunk: int
    stages: int = 1  # of a pipeline
    decode_admission: str = GREEDY  # one of DECODE_ADMISSIONS
    forward_tokens: int = 0  # prompts fill a step up to this; 0: up to the budget

    @property
    def step_tokens(self) -> int:
        """The tokens that a step is filled up to."""
        return min(self.max_batch_tokens, self.forward_tokens or self.max_batch_tokens)

    def prompt_tokens(self, num_decodes: int) -> int:
        """The tokens that prompts may have of a step beside `num_decodes`."""
        left = self.max_batch_tokens - num_decodes
        if not self.forward_tokens:
            return left
        most = self.step_tokens
        return min(left, max(most - num_decodes, int(LEAST_SHARE * most)))


def chunk_of(
    pending: int, cost: int, policy: Policy, prefill_chunk: int, budget: int, alone: int
) -> int:
    """The tokens of a prompt's next chunk, where `pending` are left to compute; 0: none.

    Each token counts as `cost` of the budget, but one token fits as long as anything does.
    `alone`: the budget of a whole prompt that is the first of the step; 0: it is not the first.
    """
    if budget <= 0:
        return 0
    room = budget
    if cost > 1:
        room, prefill_chunk = max(1, budget // cost), max(1, prefill_chunk // cost)
    if not policy.whole_prompts:
        return min(pending, prefill_chunk, room)
    if pending <= room:
        return pending
    return min(pending, max(1, alone // cost)) if alone else 0


class StepBuilder:
    """Collects a step's rows and owns its budget; drops rows of preempted sequences."""

    def __init__(self, limits: Limits, policy: Policy, table: SlotTable) -> None:
        self.budget = limits.max_batch_tokens  # tokens left
        self._chunk = limits.prefill_chunk
        self._policy = policy
        self.prompts: list[int] = []  # slots with a chunk, after `rows` those that still have it
        self._table = table
        self._departures = table.departures
        self._limits = limits
        self._num_decodes = self._prompt_tokens = 0
        self._decodes: list[Slots] = []
        self._decodes_at: list[int] = []  # departures when each of these was added
        self.chunks: list[int] = []  # their tokens, as `prompts`
        self.any_partial = False  # whether any of them may not be the last of its prompt
        self._prompts_at: list[int] = []
        self._update_room()

    @property
    def empty(self) -> bool:
        """Whether no row was added."""
        return not (self._decodes or self.prompts)

    def cap(self, budget: int) -> None:
        """Leave only `budget` tokens."""
        self.budget = budget
        self._update_room()

    def _update_room(self) -> None:
        self.room = self.budget
        if self._limits.forward_tokens:
            room = self._limits.prompt_tokens(self._num_decodes) - self._prompt_tokens
            self.room = min(self.budget, room)

    def chunk(self, pending: int, cost: int) -> int:
        """The tokens of a prompt's next chunk in this step, where `pending` are left; 0: none."""
        alone = 0 if self.prompts else self.budget
        count = chunk_of(pending, cost, self._policy, self._chunk, self.room, alone)
        if 0 < count < pending:
            self.any_partial = True
        return count

    def add_decodes(self, slots: Slots) -> None:
        """Add one token for each of these slots."""
        if slots.size:
            self._decodes.append(slots)
            self._decodes_at.append(self._table.departures)
            self.budget -= slots.size
            self._num_decodes += slots.size
            self._update_room()

    def add_prompt(self, slot: int, count: int, cost: int) -> None:
        """Add a chunk of `count` tokens, as `chunk` gave, for a slot; each counts as `cost`."""
        self.prompts.append(slot)
        self.chunks.append(count)
        self._prompts_at.append(self._table.departures)
        tokens = count * cost
        self.budget -= tokens
        self._prompt_tokens += tokens
        self.room = min(self.budget, self.room - tokens)

    def rows(self) -> tuple[Slots, Int32]:
        """(slots, counts) of the rows whose sequences still have their slots: decodes first."""
        if self._table.departures != self._departures or self._table.giving_way:
            self._drop_gone()
        if not self.prompts and len(self._decodes) == 1:
            slots = self._decodes[0]
            return slots, self._table.of_decodes.counts[: slots.size]
        slots = np.concatenate([*self._decodes, np.array(self.prompts, np.intp)])
        counts = self._table.of_decodes.counts[: slots.size].copy()
        counts[slots.size - len(self.prompts) :] = self.chunks
        return slots, counts

    def _drop_gone(self) -> None:
        """Drop rows whose sequences have left their slots, or give way, since they were added."""
        epoch, gives_way = self._table.epoch, self._table.gives_way
        decodes = zip(self._decodes, self._decodes_at, strict=True)
        self._decodes = [
            slots[(epoch[slots] <= added_at) & ~gives_way(slots)] for slots, added_at in decodes
        ]
        prompts = zip(self.prompts, self._prompts_at, strict=True)
        alive = [epoch.item(slot) <= added_at for slot, added_at in prompts]
        self.prompts = list(compress(self.prompts, alive))
        self.chunks = list(compress(self.chunks, alive))

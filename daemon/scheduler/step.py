"""The step that is being filled: its rows, in order, and the rest of its token budget."""

from dataclasses import dataclass

import numpy as np

from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.slots import SlotTable
from daemon.wire.columns import ONE, Int32, Slots

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
    pending: int, cost: int, policy: Policy, prefill_chunk: int, budget: int, first: bool
) -> int:
    """The tokens of a prompt's next chunk, where `pending` are left to compute; 0: none.

    Each token counts as `cost` of the budget, but one token fits as long as anything does.
    `first`: no other prompt is in the step.
    """
    if budget <= 0:
        return 0
    room = budget
    if cost > 1:
        room, prefill_chunk = max(1, budget // cost), max(1, prefill_chunk // cost)
    if not policy.whole_prompts:
        return min(pending, prefill_chunk, room)
    if pending <= room or first:
        return min(pending, room)
    return 0


class StepBuilder:
    """Collects a step's rows and owns its budget; drops rows of preempted sequences."""

    def __init__(self, limits: Limits, policy: Policy, table: SlotTable) -> None:
        self.budget = limits.max_batch_tokens  # tokens left
        self.room = 0  # tokens left for prompts
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
        room = self._limits.prompt_tokens(self._num_decodes) - self._prompt_tokens
        self.room = min(self.budget, room)

    def chunk(self, pending: int, cost: int) -> int:
        """The tokens of a prompt's next chunk in this step, where `pending` are left; 0: none."""
        return chunk_of(pending, cost, self._policy, self._chunk, self.room, not self.prompts)

    def add_decodes(self, slots: Slots) -> None:
        """Add one token for each of these slots."""
        if slots.size:
            self._decodes.append(slots)
            self._decodes_at.append(self._table.departures)
            self.budget -= slots.size
            self._num_decodes += slots.size
            self._update_room()

    def add_prompt(self, slot: int, count: int, cost: int) -> None:
        """Add a chunk of `count` tokens for a slot, each of which counts as `cost`."""
        self.prompts.append(slot)
        self.chunks.append(count)
        self._prompts_at.append(self._table.departures)
        tokens = count * cost
        self.budget -= tokens
        self._prompt_tokens += tokens
        self.room = min(self.budget, self.room - tokens)

    def rows(self) -> tuple[Slots, Int32]:
        """(slots, counts) of the rows whose sequences still have their slots: decodes first."""
        if self.prompts or len(self._decodes) != 1:
            slots = np.concatenate([*self._decodes, np.array(self.prompts, np.intp)])
        else:
            slots = self._decodes[0]
        counts = np.zeros(slots.size, np.int32) + ONE
        if self.prompts:
            counts[-len(self.prompts) :] = self.chunks
        if self._table.departures == self._departures:
            return slots, counts
        sizes = [*(decodes.size for decodes in self._decodes), *[1] * len(self.prompts)]
        alive = self._table.epoch[slots] <= np.repeat(self._decodes_at + self._prompts_at, sizes)
        first = slots.size - len(self.prompts)
        self.prompts = slots[first:][alive[first:]].tolist()
        self.chunks = counts[first:][alive[first:]].tolist()
        return slots[alive], counts[alive]

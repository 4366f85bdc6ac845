"""The running sequences of an instance as columns: row s of every column is slot s."""

from typing import NamedTuple

import numpy as np

from daemon.cost.step_time import Float64
from daemon.state.sequence import NEVER, Sequence
from daemon.wire.columns import Bools, Int32, Slots, UInt8, any_true

_FIRST = float("-inf"), -1  # (rank, arrival) before all others


class DecodeColumns(NamedTuple):
    """The columns that are the same in every step of decodes, of the largest size; read-only."""

    counts: Int32
    samples: UInt8
    fed: UInt8  # 0: workers have the tokens themselves

    @classmethod
    def of_size(cls, max_slots: int) -> "DecodeColumns":
        """Columns of so many rows."""
        ones = np.ones(max_slots, np.int32), np.ones(max_slots, np.uint8)
        columns = cls(*ones, np.zeros(max_slots, np.uint8))
        for column in columns:
            column.flags.writeable = False
        return columns


class SlotTable:
    """The changing counts of running sequences, and their order under the policy.

    `known` counts a token as soon as a plan samples it, save the last one of all, which is never
    computed; `delivered` counts it once its step has answered; `computed` counts tokens whose KV
    is written or planned to be. `last_position` is limit - 1. `first_step` is the step of its first
    token here, if that step computed prompts; `behind_prompts_s` is its pause behind prompts
    here. `predicted_end` is its length when it ends, as of its rank, `likely_end`
    the same as placement assumes. `first_s` is the time of its first token; -1: not yet.
    Few policies and placements read these and `prompt`, so they are brought up to date when read.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self.of_decodes = DecodeColumns.of_size(max_slots)
        self.sequence = np.full(max_slots, -1, np.int64)
        self.epoch = np.zeros(max_slots, np.int64)  # departures, as of its newest departure
        self.computed = np.zeros(max_slots, np.int32)
        self.num_computed_tokens = 0  # of all running
        self.known = np.zeros(max_slots, np.int32)
        self.delivered = np.zeros(max_slots, np.int32)
        self.fed_until = np.zeros(max_slots, np.int32)
        self.last_position = np.zeros(max_slots, np.int32)
        self.last_step = np.zeros(max_slots, np.int64)
        self.rank = np.zeros(max_slots, np.float64)
        self.arrival = np.zeros(max_slots, np.int64)
        self.review_at = np.full(max_slots, NEVER, np.int32)  # NEVER where a slot is vacant
        self.expected: list[int] = [0] * max_slots  # length when it ends, as of its rank
        self.num_expected_tokens = 0  # of all running
        self._predicted_end = np.zeros(max_slots, np.int32)
        self._likely_end = np.zeros(max_slots, np.int32)
        self._prompt = np.zeros(max_slots, np.int32)
        self._first_s = np.full(max_slots, -1.0, np.float64)
        self._changed: set[int] = set()  # slots of which these four are not up to date
        self.first_step = np.zeros(max_slots, np.int64)
        self.behind_prompts_s = np.zeros(max_slots, np.float64)
        self.members: list[Sequence | None] = [None] * max_slots
        self.vacant = list(range(max_slots - 1, -1, -1))
        self.num_running = 0  # slots in use
        self.departures = 0
        # Slots that are preempted once their steps in flight have answered: why, and for whom.
        self.giving_way: dict[int, tuple[str, int]] = {}
        self.reranked = False  # some have new ranks or predictions since last looked at
        self._order: Slots = np.zeros(0, np.intp)  # with slots that left, until `order` is called
        self._new: list[int] = []  # slots that joined since
        self._gone = False  # whether any left since
        self._sorted = True  # the rest of `_order`, and then the new slots
        self._last = _FIRST  # (rank, arrival) of the last of them, or a later one that has left

    @property
    def full(self) -> bool:
        """Whether no slot is vacant."""
        return not self.vacant

    def join(self, sequence: Sequence, num_computed: int) -> int:
        """Give a slot to a sequence whose first `num_computed` tokens are in its blocks already."""
        if self._gone:
            self._drop_gone()
        slot = self.vacant.pop()
        self.num_running += 1
        prompt, outputs = sequence.num_prompt_tokens, sequence.num_output_tokens
        self.members[slot] = sequence
        self.sequence[slot] = sequence.id
        self.computed[slot] = num_computed
        self.num_computed_tokens += num_computed
        self.known[slot] = self.delivered[slot] = self.fed_until[slot] = prompt + outputs
        self.last_position[slot] = prompt + sequence.max_tokens - 1
        self.last_step[slot] = 0
        if sequence.review_at != NEVER:
            self.review_at[slot] = sequence.review_at
        self.arrival[slot] = arrival = sequence.arrival
        self.rank[slot] = rank = sequence.rank
        self.expected[slot] = expected = sequence.expected_length
        self.num_expected_tokens += expected
        self._changed.add(slot)
        self._new.append(slot)
        key = rank, arrival
        if not self._last <= key:
            self._sorted = False
        self._last = key
        sequence.slot = slot
        return slot

    def set_rank(self, slot: int, sequence: Sequence) -> None:
        """Take over the rank and review of the sequence in a slot, which have changed."""
        self.rank[slot] = sequence.rank
        self.review_at[slot] = sequence.review_at
        self._expect(slot, sequence.expected_length)
        self._changed.add(slot)
        self.reranked = True
        self._sorted = False

    def move(self, slot: int, rank: float) -> None:
        """Take over the rank alone of the sequence in a slot."""
        self.rank[slot] = rank
        self._sorted = False

    def _expect(self, slot: int, num_tokens: int) -> None:
        self.num_expected_tokens += num_tokens - self.expected[slot]
        self.expected[slot] = num_tokens

    def note_step(self, slots: Slots, step: int) -> None:
        """Note that these slots, which are distinct and in use, have rows in a step."""
        if slots.size == self.num_running:
            self.last_step.fill(step)  # nobody reads that of a vacant slot, and this is quicker
        else:
            self.last_step[slots] = step

    def note_first(self, sequence: Sequence) -> None:
        """Note the time of a sequence's first token, with which it may have ended."""
        if sequence.slot >= 0:
            self._changed.add(sequence.slot)

    # Columns that few read

    @property
    def prompt(self) -> Int32:
        """Tokens of prompts; int32 [max_slots]."""
        self._update()
        return self._prompt

    @property
    def first_s(self) -> Float64:
        """The times of first tokens; float64 [max_slots]."""
        self._update()
        return self._first_s

    @property
    def predicted_end(self) -> Int32:
        """Predicted lengths of ended sequences; int32 [max_slots]."""
        self._update()
        return self._predicted_end

    @property
    def likely_end(self) -> Int32:
        """Their likely lengths; int32 [max_slots]."""
        self._update()
        return self._likely_end

    def _update(self) -> None:
        for slot in self._changed:
            if (sequence := self.members[slot]) is not None:
                self._prompt[slot] = sequence.num_prompt_tokens
                self._first_s[slot] = sequence.first_token_s
                self._predicted_end[slot] = sequence.predicted_length
                self._likely_end[slot] = sequence.likely_length
        self._changed.clear()

    def leave(self, slot: int) -> Sequence:
        """Vacate a slot. Its epoch tells late answers from those for its next sequence: an answer
        for an earlier epoch is late.
        """
        sequence = self.members[slot]
        if sequence is None:
            raise LookupError(f"slot {slot} is vacant")
        sequence.num_output_tokens = self.delivered.item(slot) - sequence.num_prompt_tokens
        if behind_s := self.behind_prompts_s.item(slot):
            sequence.behind_prompts_s += behind_s
            self.behind_prompts_s[slot] = 0.0
        if sequence.review_at != NEVER:
            self.review_at[slot] = NEVER
        sequence.slot = -1
        self.members[slot] = None
        self.giving_way.pop(slot, None)
        self.sequence[slot] = -1
        self.num_computed_tokens -= self.computed.item(slot)
        self.num_expected_tokens -= self.expected[slot]
        self.departures = self.epoch[slot] = self.departures + 1
        if slot in self._new:
            self._new.remove(slot)
        else:
            self._gone = True
        self.vacant.append(slot)
        self.num_running -= 1
        return sequence

    def is_leaving(self, slot: int) -> bool:
        """Whether a slot's last token by its limit, or before it gives way, is in flight: the
        answer vacates the slot.
        """
        return slot in self.giving_way or bool(self.computed[slot] >= self.known[slot])

    def leaving(self) -> Slots:
        """The slots that are leaving, in order."""
        order = self.order()
        leaving: Bools = self.computed[order] >= self.known[order]
        if self.giving_way:
            leaving |= self.gives_way(order)
        return order[leaving]

    def gives_way(self, slots: Slots) -> Bools:
        """Whether each of these slots gives way: no further step computes it."""
        if not self.giving_way:
            return np.zeros(slots.size, np.bool_)
        return np.isin(slots, list(self.giving_way))

    def going_on(self, slots: Slots) -> Slots:
        """Those of these slots whose sequences are computed further: not gone, nor giving way."""
        here: Slots = slots[self.sequence[slots] >= 0]
        return here[~self.gives_way(here)] if self.giving_way else here

    def is_ahead(self, slot: int) -> bool:
        """Whether a slot's computed tokens are more than going on from them needs: the answer of a
        step in flight is still to be delivered.
        """
        return bool(self.computed[slot] >= self.delivered[slot])

    def member(self, slot: int) -> Sequence:
        """The sequence in a slot that is in use."""
        sequence = self.members[slot]
        if sequence is None:
            raise LookupError(f"slot {slot} is vacant")
        return sequence

    def order(self) -> Slots:
        """Slots in use, in the policy's order; intp [num_running].

        The same array as long as no sequence joined, left or changed its place.
        """
        if self._gone:
            self._drop_gone()
        if self._new:
            self._order = np.concatenate([self._order, np.array(self._new, np.intp)])
            self._new.clear()
        if not self._sorted:
            ordered = self._by_rank(self._order)
            if ordered.tobytes() != self._order.tobytes():
                self._order = ordered
            self._sorted = True
            for last in self._order[-1:].tolist():
                self._last = self.rank.item(last), self.arrival.item(last)
        return self._order

    def _by_rank(self, slots: Slots) -> Slots:
        """Sort slots by rank, then arrival. Few have moved since they were sorted, which a stable
        sort makes use of; it leaves equal ranks (and NaNs) as they stood.
        """
        ranks = self.rank[slots]
        by_rank = ranks.argsort(kind="stable")
        ranks, ordered = ranks[by_rank], slots[by_rank]
        equal = ~(ranks[1:] > ranks[:-1])
        if any_true(equal):
            arrivals = self.arrival[ordered]
            if any_true(equal & (arrivals[1:] < arrivals[:-1])):
                return slots[np.lexsort((self.arrival[slots], self.rank[slots]))]
        return ordered

    def _drop_gone(self) -> None:
        in_use = self.sequence >= 0  # to compare a whole column is quicker than to gather it
        self._order = self._order[in_use[self._order]]
        self._gone = False

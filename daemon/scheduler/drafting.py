"""Drafting: the number of drafted tokens that each row of an instance's next step verifies.

The runtime, which holds the tokens, says with each answer how many it could draft behind it; the
scheduler does not see tokens. Drafts of a row are behind its newest token, so a step that has any
is planned when no other is in flight, and none is planned before it has answered.

Drafts pay while they bring the most tokens a second, by live acceptance and step times: a step of R
rows that takes T seconds brings R tokens. One more draft of a row brings p^j tokens if it is the
row's j-th and each is accepted with chance p, and takes d seconds. So it pays while p^j over d is
more than what the step brings a second without it. Where few rows run, a step reads the weights for
little, and drafts cost next to nothing; with each row more the step is worth more, and drafts must
be surer. That is the bound on rows, and step times alone set it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from daemon.scheduler.admission import Admission
from daemon.scheduler.in_flight import InFlight, InFlightStep
from daemon.state.batch import MOST_BESIDE_DRAFTS
from daemon.wire.columns import Int32, Slots, int32

_NO_DRAFTS = int32()


LEAST_GAIN = 1.05
"""The factor on tokens per second that drafts must bring: a step that drafts is planned anew, and
none begins ahead of it."""
MOST_CHANCE = 0.97
"""The highest chance assumed of a draft: past drafts tell no more of the next."""

_FIRST_TRIED = 2.0
"""The weight of the prior, in drafts tried: for a row the record of all rows, for these the first
assumption.
"""
_FIRST_SHARES, _LONG = (0.4, 0.9), 14
"""The chance assumed at first where next to nothing is offered, and where at least _LONG tokens
are: a long stretch repeats there.
"""
KEPT = 0.7
"""The share of a row's record kept with each step that drafts: a quote ends, another text begins.
"""
_KEPT_OF_ALL = 0.95
"""The share of the common record kept with each row that drafted."""
_BACK, _BACK_LONG = 0.01, 0.05
"""The share forgotten with each step in which a row might have drafted and did not, so that it is
tried again now and then; and the further share where many could have been drafted: rows that quote
at length are found soon."""
_KEPT_TIME, _BACK_OF_TIME = 0.9, 0.01
"""The share of the record of step times kept with each step; and the share by which that of steps
with drafts goes back with each step without."""


@dataclass(slots=True)
class Trials:
    """The drafts that were tried: those behind a rejected one were not."""

    accepted: float = 0.0
    tried: float = 0.0

    def learn(self, num_drafted: int, num_accepted: int, kept: float) -> None:
        """Learn that of `num_drafted` >= 1 drafts `num_accepted` were accepted; `kept`: the share
        of the record that stays.
        """
        self.accepted = kept * self.accepted + num_accepted
        self.tried = kept * self.tried + min(num_accepted + 1, num_drafted)

    def forget(self, offer: int) -> None:
        """Forget a little, as `offer` drafts were possible and none was made."""
        kept = 1.0 - _BACK - _BACK_LONG * min(1.0, offer / _LONG) ** 2
        self.accepted *= kept
        self.tried *= kept

    def share(self, first: float) -> float:
        """The chance of a draft, if those before it are accepted; `first`: the prior."""
        share = (self.accepted + _FIRST_TRIED * first) / (self.tried + _FIRST_TRIED)
        return min(MOST_CHANCE, share)


class DraftRecord:
    """The record of all rows together: how likely drafts of an offer are accepted, and how much
    slower steps with drafts are than their tokens explain.
    """

    def __init__(self) -> None:
        self._trials = [Trials() for _ in range(_LONG + 1)]  # by the number offered
        self._slowness = {False: 1.0, True: 1.0}  # with drafts or without: measured over expected

    def share(self, offer: int) -> float:
        """The chance of a draft where `offer` are offered."""
        low, high = _FIRST_SHARES
        return self._of(offer).share(low + (high - low) * min(1.0, offer / _LONG))

    def _of(self, offer: int) -> Trials:
        return self._trials[min(offer, _LONG)]

    @property
    def factor(self) -> float:
        """The factor by which a step with drafts is slower than its tokens explain: it is planned
        anew, and none is ahead of it.
        """
        return max(1.0, self._slowness[True] / self._slowness[False])

    def state(self) -> list[float]:
        """The learned state, as plain numbers."""
        trials = chain.from_iterable((trial.accepted, trial.tried) for trial in self._trials)
        return [*self._slowness.values(), *trials]

    @classmethod
    def restored(cls, state: Sequence[float]) -> "DraftRecord":
        """The record with this `state`."""
        record = cls()
        without, with_drafts, *trials = state
        record._slowness = {False: without, True: with_drafts}
        record._trials = [Trials(*pair) for pair in zip(trials[::2], trials[1::2], strict=True)]
        return record

    def learn(self, offer: int, num_drafted: int, num_accepted: int) -> None:
        """Learn that of `num_drafted` >= 1 drafts of a row `num_accepted` were accepted."""
        self._of(offer).learn(num_drafted, num_accepted, _KEPT_OF_ALL)

    def forget(self, offer: int) -> None:
        """Forget a little, as rows with this offer drafted nothing."""
        self._of(offer).forget(offer)

    def timed(self, drafts: bool, ratio: float) -> None:
        """Learn that a step of decodes took `ratio` times its expected time."""
        old = self._slowness[drafts]
        self._slowness[drafts] = old + (1.0 - _KEPT_TIME) * (min(ratio, 2.0 * old) - old)
        if not drafts:  # the record of the others fades, so that they are tried again
            self._slowness[True] += _BACK_OF_TIME * (self._slowness[False] - self._slowness[True])


def may_pay(num_rows: int, step_s: float, draft_s: float) -> bool:
    """Whether the surest draft would pay beside `num_rows`, whose step takes `step_s` alone."""
    return MOST_CHANCE * step_s > LEAST_GAIN * draft_s * num_rows


def allot(
    chances: Sequence[float],
    offers: Sequence[int],
    num_rows: int,
    step_s: float,
    draft_s: float,
    most: int,
    factor: float = 1.0,
    ahead: int = 0,
) -> list[int]:
    """The number of drafts for each row, of its `offers`, given each row's `chances`; `most` in
    all.

    `num_rows` run, these among them, in a step that takes `step_s` without drafts; each draft adds
    `draft_s`, and a step with any takes `factor` times the sum. `ahead` tokens of each row precede
    the first draft, in steps in flight: they decide whether there will be any draft.
    """
    granted = [0] * len(offers)
    gains = [
        chance ** (1 + ahead) if offer else 0.0
        for chance, offer in zip(chances, offers, strict=True)
    ]
    tokens, time_s = float(num_rows), step_s
    while sum(granted) < most:
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] <= 0.0 or gains[best] * time_s <= draft_s * tokens:
            break
        tokens += gains[best]
        time_s += draft_s
        granted[best] += 1
        more = granted[best] < offers[best]
        gains[best] = gains[best] * chances[best] if more else 0.0
    pays = tokens * step_s >= LEAST_GAIN * num_rows * time_s * factor
    return granted if pays else [0] * len(offers)


@dataclass(slots=True)
class _Row:
    """The record of the sequence in a slot."""

    epoch: int
    trials: Trials = field(default_factory=Trials)
    offered: int = 0  # drafts
    delivered: int = 0  # its tokens at that time
    granted: int = 0  # drafts for its next step


class Drafting:
    """Grants drafts to rows, and learns from their acceptance."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._table = admission.slots
        self._rows: dict[int, _Row] = {}  # by slot
        self._granted: list[int] = []  # slots
        self.record = DraftRecord()
        self.same_until: tuple[int, ...] = ()  # as the worker said

    @property
    def wants(self) -> bool:
        """Whether the next step should draft, if nothing else is in flight."""
        return bool(self._granted)

    @property
    def offered(self) -> bool:
        """Whether drafts were offered behind the newest token of a running sequence."""
        table = self._table
        return any(
            row.epoch == table.epoch[slot] and row.delivered == table.delivered[slot]
            for slot, row in self._rows.items()
        )

    @property
    def looks(self) -> bool:
        """Whether looking for drafts is worth it beside all running sequences."""
        num_rows = self._table.num_running
        if self._admission.kv.has_states or not num_rows:  # a rejected draft would be in the state
            return False
        return self.room(num_rows) > 0 and may_pay(num_rows, *self._times())

    def room(self, num_tokens: int) -> int:
        """The number of drafts that a step of `num_tokens` has room for: beyond it the step's own
        tokens would be computed in another way, and their answers might differ.
        """
        ends = (count for count in self.same_until if count >= num_tokens)
        return min(next(ends, MOST_BESIDE_DRAFTS), MOST_BESIDE_DRAFTS) - num_tokens

    def reset(self) -> None:
        """Forget everything, as the worker is another one."""
        self._rows.clear()
        self._granted.clear()
        self.record = DraftRecord()

    def answered(
        self, flown: InFlightStep, counts: Int32, offers: Int32, later: InFlight
    ) -> tuple[int, int, int]:
        """Learn from a step, and decide on the next one by its `offers` [R]; empty: none.

        The `later` steps decode tokens of each row ahead of the next one. Returns the number of
        rows that drafted, of their drafts, and of accepted drafts.
        """
        learned = self._learn(flown, counts) if flown.drafts.size else (0, 0, 0)
        self._granted.clear()
        if offers.size and not self._admission.kv.has_states:
            self._decide(flown, offers, later.times)
        return learned

    def _learn(self, flown: InFlightStep, counts: Int32) -> tuple[int, int, int]:
        if not counts.size:  # the worker left drafts out: tokens might have differed
            return 0, 0, 0
        accepted = (counts - 1).clip(0, flown.drafts)
        (drafting,) = flown.drafts.nonzero()
        for index in drafting.tolist():
            row = self._rows.get(int(flown.slots[index]))
            if row is not None and row.epoch <= flown.departures:
                num_drafted, num_accepted = int(flown.drafts[index]), int(accepted[index])
                row.trials.learn(num_drafted, num_accepted, KEPT)
                self.record.learn(row.offered, num_drafted, num_accepted)
        return drafting.size, int(flown.drafts.sum()), int(accepted[drafting].sum())

    def _decide(self, flown: InFlightStep, offers: Int32, ahead: int) -> None:
        """Grant drafts to the rows of a step that has answered."""
        table, rows = self._table, list[tuple[int, _Row]]()
        offered = (offers > 0) & flown.alive(table)
        for slot, offer in zip(
            flown.slots[offered].tolist(), offers[offered].tolist(), strict=True
        ):
            row = self._rows.get(slot)
            if row is None or row.epoch != table.epoch[slot]:
                row = self._rows[slot] = _Row(int(table.epoch[slot]))
            row.offered, row.delivered = offer, int(table.delivered[slot])
            rows.append((slot, row))
        if not rows:
            return
        asked = [row.offered for _, row in rows]
        chances = [row.trials.share(self.record.share(row.offered)) for _, row in rows]
        most = self.room(table.num_running)
        running = table.num_running, *self._times()
        granted = allot(chances, asked, *running, most, self.record.factor, ahead)
        for (slot, row), count in zip(rows, granted, strict=True):
            row.granted = count
            if count:
                self._granted.append(slot)
            else:
                row.trials.forget(row.offered)
        tried = {row.offered for _, row in rows if row.granted}
        for offer in sorted(set(asked) - tried):
            self.record.forget(offer)

    def _times(self) -> tuple[float, float]:
        """(time of a step of all running sequences, time that one draft adds to it)."""
        num_rows, context = self._table.num_running, self._table.num_computed_tokens
        step_time = self._admission.order.step_time
        _, row_s, context_s = step_time.decode_terms
        draft_s = row_s + context_s * context / max(1, num_rows)
        return step_time.decode_s(num_rows, context), draft_s

    def take(self, slots: Slots, sizes: tuple[int, int], budget: int) -> Int32:
        """The drafts of each row [B] of the present plan, as far as `budget`, limits and blocks
        allow; empty: none. Nothing is preempted for them. `sizes`: tokens and sampled rows; all
        layers compute the tokens, the head the rows, and drafts are beside both.
        """
        table, kv = self._table, self._admission.kv
        budget = min(budget, *map(self.room, sizes))
        granted = set(self._granted)
        self._granted.clear()
        drafts = np.zeros(slots.size, np.int32)
        for index, slot in enumerate(slots.tolist()):
            row = self._rows.get(slot) if slot in granted else None
            if row is None or row.epoch != table.epoch[slot]:
                continue
            computed, known = int(table.computed[slot]), int(table.known[slot])
            if not row.delivered == known == table.delivered[slot] == computed + 1:
                continue
            count = min(row.granted, budget, int(table.last_position[slot]) - computed - 1)
            if count > 0:
                room = int(kv.table.held[slot]) * kv.block_size - computed - 1
                if room < count and self._may_append(slot):
                    kv.append_each(np.array([slot]))
                    room += kv.block_size
                drafts[index] = count = min(count, room)
                budget -= count
        return drafts if drafts.any() else _NO_DRAFTS

    def _may_append(self, slot: int) -> bool:
        """Whether a block is available that no other sequence waits for."""
        admission, kv = self._admission, self._admission.kv
        if admission.waiting or kv.num_unreserved <= admission.num_spare:
            return False
        return kv.can_append(np.array([slot]))

"""Displacement: the choice of running sequences to preempt."""

from collections.abc import Iterator

from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import DEFER
from daemon.scheduler.order import Order
from daemon.scheduler.pace import StreamPace
from daemon.scheduler.policies.base import PREDICTION
from daemon.scheduler.residency import Residency
from daemon.state.sequence import Sequence
from daemon.wire.columns import Slots

SHORT_PAUSES = 2.0
"""A sequence whose stretch is shorter than this many longest pauses keeps its slot, except before a
better priority: it would pause for longer than the other gains. (TRAIL, too, preempts only
sequences far from their ends.)"""


class Displacement:
    """Chooses the victims of one instance; it preempts none itself."""

    def __init__(self, order: Order, residency: Residency, pace: StreamPace) -> None:
        self._order = order
        self._slots = order.slots
        self._residency = residency
        self._pace = pace

    def for_one(
        self, sequence: Sequence, num_blocks: int, kv: KVCache, joined: list[int], now: float
    ) -> list[int]:
        """The last slots in the order that together give `num_blocks`, if a sequence may preempt
        them; none if they give fewer, or if host memory has no room for their KV: to compute it all
        again costs more than a slot is worth. A stream whose pause has to end needs neither rank
        nor room. Slots that are leaving anyway, or in their time slice, are skipped; where there
        are no others, slots past their least slice are preempted for such a stream.
        """
        if not self._order.policy.displaces or self._residency.mode == DEFER:
            return []
        order, pace = self._slots.order(), self._pace
        due = pace.due(now) is sequence
        for may_give_way in (pace.out_of_slice, pace.after_least_slice)[: 1 + due]:
            room, lacking = self._residency.host_room(), num_blocks
            found = []
            for slot in self._from_the_last(may_give_way(order, now)):
                member = self._slots.member(slot)
                if slot in joined:  # this plan admitted it; ranks change with the step time
                    break
                if member is sequence.leader and not sequence.num_output_tokens:
                    break  # it will share its leader's blocks
                if not (due or self._leads(sequence, member, kv, now)):
                    break
                room -= int(kv.charged[slot]) - len(member.residence.host_blocks)
                if room < 0 and not due:
                    break
                found.append(slot)
                lacking -= max(kv.num_own(slot), int(self._slots.full))
                if lacking <= 0:
                    return found
        return []

    def for_growth(self, kv: KVCache, now: float) -> int:
        """The last slot in the order without a reservation, outside its time slice if there is
        such; where predictions are reserved, the last of all if each has a reservation.
        """
        order = self._slots.order()
        for slots in (self._pace.out_of_slice(order, now), order):
            for slot in self._from_the_last(slots):
                if not kv.reservations.has(slot):
                    return slot
        if self._order.policy.reserves == PREDICTION:
            return next(self._from_the_last(order))
        raise LookupError("no sequence can be preempted")

    def _from_the_last(self, slots: Slots) -> Iterator[int]:
        """The slots that are not leaving, last first."""
        return (slot for slot in map(int, slots[::-1]) if not self._slots.is_leaving(slot))

    def _leads(self, sequence: Sequence, member: Sequence, kv: KVCache, now: float) -> bool:
        """Whether a waiting sequence leads a running one by enough to preempt it."""
        span_s = member.outlook.span_tokens * self._order.step_time.mean_s
        short = span_s < SHORT_PAUSES * self._pace.max_pause_s
        if short and sequence.priority >= member.priority:
            return False
        moves_s = self._residency.copy_time.round_trip_s(int(kv.charged[member.slot]))
        return sequence.rank + self._order.lead_s(sequence, moves_s, now) < member.rank

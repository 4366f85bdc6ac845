"""Answers by deadline, then held KV, then length, and the best fit (EcoServe-SDO)."""

import numpy as np

from daemon.scheduler.fillers.decoupled import Grouped
from daemon.scheduler.policies.synced import MOST_RANGES, RANGE_TOKENS
from daemon.wire.columns import Int32, Slots


class Ordered(Grouped):
    """Answers in order while they fit; then those that leave the least room unused."""

    def choose(self, waiting: Slots, lacking: Int32, room: int, now: float) -> Slots:
        """The places of waiting answers, lacking `lacking` blocks each, that begin in this room."""
        places = self.sorted_places(waiting)
        num_first = int(lacking[places].cumsum().searchsorted(room, "right"))
        rest = places[num_first:]
        if not rest.size or self._is_late(int(waiting[rest[0]]), now):
            return places[:num_first]  # none passes an answer that should have begun
        room -= int(lacking[places[:num_first]].sum())
        return np.concatenate([places[:num_first], best_fit(rest, lacking[rest], room)])

    def sorted_places(self, waiting: Slots) -> Slots:
        """The places of these slots, in order; equal lengths stand together."""
        kv = self.admission.kv
        holds = kv.table.held[waiting] * kv.block_size // RANGE_TOKENS
        lengths, left = self.blocks_to_come(waiting), self._time_ranges(waiting)
        order: Slots = np.lexsort((-lengths, -holds, left))
        return order

    def _time_ranges(self, slots: Slots) -> Slots:
        ranges: Slots = np.ceil(self.slots.rank[slots] / MOST_RANGES).astype(np.intp)
        return ranges

    def _is_late(self, slot: int, now: float) -> bool:
        order = self.admission.order
        begin_by_s = order.policy.begin_by_s(self.slots.member(slot), order.step_time)
        return begin_by_s < now


def best_fit(places: Slots, lacking: Int32, room: int) -> Slots:
    """The places, each lacking `lacking` blocks, chosen one by one as the largest that fits."""
    by_size = lacking.argsort(kind="stable")
    sizes, chosen = lacking[by_size], []
    end = sizes.size
    while (end := int(sizes[:end].searchsorted(room, "right"))) > 0:
        end -= 1
        chosen.append(int(places[by_size[end]]))
        room -= int(sizes[end])
    return np.array(chosen, np.intp)

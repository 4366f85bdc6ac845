"""Answers by deadline, then what they hold, then length, and the best fit (EcoServe-SDO)."""

import numpy as np

from daemon.scheduler.fillers.decoupled import Grouped
from daemon.scheduler.policies.synced import DUE_RANGE_S, MOST_RANGES, RANGE_TOKENS
from daemon.wire.columns import Bools, Int32, Slots


class Ordered(Grouped):
    """In order while they fit; then whichever leave the least room unused."""

    def choose(self, waiting: Slots, lacking: Int32, room: int, now: float) -> Slots:
        """Of those that wait, and lack so many blocks, which begin in this room; their places."""
        places = self.sorted_places(waiting)
        num_first = int(lacking[places].cumsum().searchsorted(room, "right"))
        rest = places[num_first:]
        if not rest.size or self._overdue(waiting[rest[:1]], now)[0]:
            return places[:num_first]  # nobody passes one that is overdue
        room -= int(lacking[places[:num_first]].sum())
        return np.concatenate([places[:num_first], best_fit(rest, lacking[rest], room)])

    def sorted_places(self, waiting: Slots) -> Slots:
        """The places of these slots, in order: those of equal lengths stand together."""
        kv, due = self.admission.kv, self._due_ranges(waiting)
        holds = kv.table.held[waiting] * kv.block_size // RANGE_TOKENS
        ends = -(-self.ends.of(waiting) // kv.block_size)
        order: Slots = np.lexsort((-ends, -holds, due))
        return order

    def _due_ranges(self, slots: Slots) -> Slots:
        ranges: Slots = np.ceil(self.slots.rank[slots] / MOST_RANGES).astype(np.intp)
        return ranges

    def _overdue(self, slots: Slots, now: float) -> Bools:
        overdue: Bools = (self._due_ranges(slots) + 1) * DUE_RANGE_S < now
        return overdue


def best_fit(places: Slots, lacking: Int32, room: int) -> Slots:
    """Of these places, each of which lacks so much, the largest that fits, and again."""
    by_size = lacking.argsort(kind="stable")
    sizes, chosen = lacking[by_size], []
    end = sizes.size
    while (end := int(sizes[:end].searchsorted(room, "right"))) > 0:
        end -= 1
        chosen.append(int(places[by_size[end]]))
        room -= int(sizes[end])
    return np.array(chosen, np.intp)

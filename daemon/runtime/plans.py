"""From the Core's batch to the worker's plan: the sequence in each slot, and its token ids."""

import numpy as np

from daemon.protocol.worker import Plan
from daemon.runtime.token_store import TokenStore
from daemon.state.batch import Batch
from daemon.wire.columns import Int32, int32


class Planner:
    """One instance's slots as its worker sees them, plan by plan."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._sequence_by_slot: dict[int, int] = {}

    def plan(self, batch: Batch) -> Plan:
        """The batch with the token ids of its fed rows and the data of joining sequences."""
        seats = self._sequence_by_slot
        joined = zip(batch.joined_slots.tolist(), batch.joined_sequences.tolist(), strict=True)
        seats.update(joined)
        joins = tuple(self._store.join(slot, seats[slot]) for slot in batch.joined_slots.tolist())
        fed = np.flatnonzero(batch.fed)
        rows = zip(
            batch.slots[fed].tolist(),
            batch.starts[fed].tolist(),
            batch.counts[fed].tolist(),
            strict=True,
        )
        pieces = [self._store.slice(seats[slot], start, count) for slot, start, count in rows]
        inputs = np.concatenate(pieces) if pieces else int32()
        return Plan(batch, inputs, joins, self._drafts(batch))

    def _drafts(self, batch: Batch) -> Int32:
        """The drafted tokens of all rows; each row's follow its newest token."""
        (rows,) = batch.drafts.nonzero()
        if not rows.size:
            return int32()
        known = (batch.starts + batch.counts)[rows].tolist()
        asked = zip(batch.slots[rows].tolist(), known, batch.drafts[rows].tolist(), strict=True)
        seats, store = self._sequence_by_slot, self._store
        return np.concatenate(
            [store.drafted(seats[slot], length, count) for slot, length, count in asked]
        )

"""The worker's table of running sequences: one row a slot, as columns."""

from collections.abc import Iterable

import numpy as np

from daemon.batch import Batch
from daemon.engine.protocol import Join
from daemon.request import FinishReason
from daemon.wire.columns import Column, Int32, UInt8


class Slots:
    """Block tables, last tokens and end tokens of the sequences that hold a slot."""

    def __init__(self, max_slots: int, max_blocks: int, eos_ids: tuple[int, ...]) -> None:
        self.block_table = np.zeros((max_slots, max_blocks), np.int32)
        self.last_token = np.zeros(max_slots, np.int64)
        self._eos_ids = eos_ids
        self._end_ids: list[frozenset[int]] = [frozenset()] * max_slots

    def join(self, joins: Iterable[Join]) -> None:
        """Sequences take slots; what the slots held before is forgotten."""
        for join in joins:
            sampling = join.sampling
            eos_ids = () if sampling.ignore_eos else self._eos_ids
            self._end_ids[join.slot] = frozenset((*eos_ids, *sampling.stop_token_ids))
            self.block_table[join.slot] = 0

    def change_tables(self, batch: Batch) -> None:
        """Apply a plan's block table changes."""
        self.block_table[batch.table_slots, batch.table_indices] = batch.table_blocks

    def reasons(self, slots: Column, tokens: Int32) -> UInt8:
        """STOP where a row's token [R] ends its sequence, else NONE.

        Before `min_tokens` outputs exist the sampler draws no end token, so none is seen here.
        """
        ends = self._end_ids
        stopped = [
            token in ends[slot] for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True)
        ]
        return np.where(stopped, FinishReason.STOP, FinishReason.NONE).astype(np.uint8)

"""The worker's table of running sequences: one row a slot, as columns."""

from collections.abc import Iterable

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.upload import upload, upload_all
from daemon.protocol.worker import Join
from daemon.state.batch import Batch
from daemon.state.request import FinishReason
from daemon.wire.columns import Bools, Column, Int32, Int64, UInt8


class Slots:
    """Block tables, last tokens and end tokens of the sequences that hold a slot.

    Last tokens, int64 [slot], live on the device: a step's sampled token is the next one's input,
    without a wait for the host. Block tables int32 [slot, block] are the host's; a GPU
    has a copy in `device_table`, for steps that are captured once and replayed.
    """

    def __init__(
        self,
        max_slots: int,
        max_blocks: int,
        eos_ids: tuple[int, ...],
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_table = np.zeros((max_slots, max_blocks), np.int32)
        self.last_token = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self.device_table = torch.from_numpy(self.block_table)
        if self.last_token.is_cuda:
            self.device_table = self.device_table.to(device)
        # On a CPU the same numbers for numpy, which takes a few of them in a tenth of the time.
        self._here = None if self.last_token.is_cuda else self.last_token.numpy()
        self._eos_ids = eos_ids
        self._end_ids: list[frozenset[int]] = [frozenset()] * max_slots

    def join(self, joins: Iterable[Join]) -> None:
        """Sequences take slots; what the slots held before is forgotten."""
        for join in joins:
            sampling = join.sampling
            eos_ids = () if sampling.ignore_eos else self._eos_ids
            self._end_ids[join.slot] = frozenset((*eos_ids, *sampling.stop_token_ids))

    def clear(self) -> None:
        """Forget every sequence."""
        self.block_table.fill(0)
        self.last_token.zero_()
        self.device_table.zero_()
        self._end_ids = [frozenset()] * len(self._end_ids)

    def change_tables(self, batch: Batch) -> None:
        """Apply a plan's block table changes."""
        rows, columns = batch.table_slots, batch.table_indices
        self.block_table[rows, columns] = batch.table_blocks
        if self.last_token.is_cuda and len(rows):
            # Read back, so that a cell that changes twice is written twice with its last value.
            blocks = self.block_table[rows, columns]
            cells = rows.astype(np.int64) * self.block_table.shape[1] + columns
            changes = upload(np.stack((cells, blocks)).astype(np.int64), self.last_token.device)
            self.device_table.view(-1).index_copy_(0, changes[0], changes[1].int())

    def inputs(self, batch: FlatBatch) -> torch.Tensor:
        """The token ids int64 [T] of a batch on the device, the slots' own last ones included."""
        if self._here is not None:
            tokens = batch.tokens.copy()
            tokens[batch.own_tokens] = self._here[batch.own_slots]
            return torch.from_numpy(tokens)
        own, slots, tokens = upload_all(
            [batch.own_tokens, batch.own_slots, batch.tokens], self.last_token.device
        )
        if not len(own):
            return tokens
        last = self.last_token.index_select(0, slots)
        return last if len(last) == len(tokens) else tokens.index_copy(0, own, last)

    def take(self, slots: Int64, tokens: torch.Tensor) -> None:
        """These slots' last tokens [R] are `tokens` int64 [R] on the device, once it has them."""
        if self._here is not None:
            self._here[slots] = tokens.numpy()
            return
        self.last_token.index_copy_(0, upload(slots, self.last_token.device), tokens)

    def are_ends(self, slots: Column, tokens: Column) -> Bools:
        """Which of these tokens [N] would end the sequences in these slots."""
        ends = self._end_ids
        pairs = zip(slots.tolist(), tokens.tolist(), strict=True)
        return np.fromiter((token in ends[slot] for slot, token in pairs), np.bool_, len(slots))

    def reasons(self, slots: Column, tokens: Int32) -> UInt8:
        """STOP where a row's token [R] ends its sequence, else NONE.

        Before `min_tokens` outputs exist the sampler samples no end token, so none is seen here.
        """
        reasons = np.full(len(slots), FinishReason.NONE, np.uint8)
        reasons[self.are_ends(slots, tokens)] = FinishReason.STOP
        return reasons

"""A worker without a model, answering plans: it keeps tokens in blocks and reads histories back.

The next token is a function of the seed and of the history in the blocks that a row attends to, so
a wrong input, a wrong block or a lost token changes everything after it.
"""

import zlib

import numpy as np

from daemon.protocol.worker import Plan, Reply
from daemon.request import SamplingParams
from daemon.wire.columns import int32

VOCABULARY = 1000


def next_token(seed: int, history: list[int]) -> int:
    return zlib.crc32(f"{seed} {history}".encode()) % VOCABULARY


def expected(prompt: list[int], seed: int, count: int) -> list[int]:
    """The only right answer."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(seed, tokens))
    return tokens[len(prompt) :]


class ScriptedWorker:
    """One worker's life; a successor starts with empty blocks."""

    def __init__(self, num_blocks: int, block_size: int, max_slots: int, max_len: int) -> None:
        self._block_size = block_size
        self._contents = np.full((num_blocks, block_size), -1, np.int32)
        self._table = np.full((max_slots, -(-max_len // block_size)), -1, np.int32)
        self._sampling: dict[int, SamplingParams] = {}
        self._last: dict[int, int] = {}
        self.histories: list[list[int]] = []  # of every join

    def answer(self, plan: Plan) -> Reply:
        batch = plan.batch
        for slot in batch.left_slots.tolist():
            del self._sampling[slot]
        for join in plan.joins:
            assert join.slot not in self._sampling
            self._sampling[join.slot] = join.sampling
            self.histories.append(join.history.tolist())
        self._table[batch.table_slots, batch.table_indices] = batch.table_blocks
        self._contents[batch.copy_targets] = self._contents[batch.copy_sources]
        self._write(plan)
        ends = (batch.starts + batch.counts).tolist()
        sampled = batch.samples.astype(bool).tolist()
        for slot, end, sample in zip(batch.slots.tolist(), ends, sampled, strict=True):
            if sample:
                self._last[slot] = next_token(self._sampling[slot].seed, self._history(slot, end))
        tokens = [self._last[slot] for slot in batch.slots[batch.samples.astype(bool)].tolist()]
        return Reply(batch.step, int32(tokens), np.zeros(len(tokens), np.uint8), 0.001, 0.0)

    def _write(self, plan: Plan) -> None:
        inputs = iter(plan.inputs.tolist())
        batch = plan.batch
        columns = (batch.slots, batch.starts, batch.counts, batch.fed)
        for slot, start, count, fed in zip(*(c.tolist() for c in columns), strict=True):
            for position in range(start, start + count):
                block = self._table[slot, position // self._block_size]
                token = next(inputs) if fed else self._last[slot]
                self._contents[block, position % self._block_size] = token
        assert next(inputs, None) is None, "more inputs than fed tokens"

    def _history(self, slot: int, end: int) -> list[int]:
        blocks = self._table[slot, : -(-end // self._block_size)]
        tokens: list[int] = self._contents[blocks].reshape(-1)[:end].tolist()
        return tokens

"""A worker without a model, answering plans: it keeps tokens in blocks and reads histories back.

The next token is a function of the seed and of the history in the blocks that a row attends to, so
a wrong input, a wrong block or a lost token changes everything after it.
"""

import zlib

import msgspec
import numpy as np

from daemon.protocol.worker import Plan, Reply
from daemon.state.request import SamplingParams
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
        self.most = 1  # tokens that a row draws where the blocks hold their KV

    def answer(self, plan: Plan) -> Reply:
        batch = plan.batch
        for slot in batch.left_slots.tolist():
            del self._sampling[slot]
            self._table[slot] = -1
        for join in plan.joins:
            assert join.slot not in self._sampling
            self._sampling[join.slot] = join.sampling
            self.histories.append(join.history.tolist())
        self._table[batch.table_slots, batch.table_indices] = batch.table_blocks
        self._contents[batch.copy_targets] = self._contents[batch.copy_sources]
        self._write(plan)
        sampled = batch.samples.astype(bool)
        ends = (batch.starts + batch.counts)[sampled].tolist()
        rows = [
            self._draw(slot, end)
            for slot, end in zip(batch.slots[sampled].tolist(), ends, strict=True)
        ]
        tokens = [token for row in rows for token in row]
        reply = Reply(batch.step, int32(tokens), np.zeros(len(rows), np.uint8), 0.001, 0.0)
        if self.most == 1:
            return reply
        return msgspec.structs.replace(reply, counts=int32([len(row) for row in rows]))

    def _draw(self, slot: int, end: int) -> list[int]:
        """The tokens of a row after its first `end` tokens."""
        blocks = self._table[slot]
        tokens = [next_token(self._sampling[slot].seed, self._history(slot, end))]
        room = int(np.count_nonzero(blocks >= 0)) * self._block_size
        while len(tokens) < self.most and end < room:
            self._contents[blocks[end // self._block_size], end % self._block_size] = tokens[-1]
            end += 1
            tokens.append(next_token(self._sampling[slot].seed, self._history(slot, end)))
        self._last[slot] = tokens[-1]
        return tokens

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

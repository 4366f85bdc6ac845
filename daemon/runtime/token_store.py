"""Token ids of live sequences: the Core counts them, the runtime holds them."""

from typing import NamedTuple

import msgspec
import numpy as np

from daemon.memory.hashing import HASH_BYTES, chain_hashes
from daemon.protocol.api import Generate
from daemon.protocol.worker import Join
from daemon.runtime.lookup import draft
from daemon.state.request import SamplingParams, sequence_id
from daemon.wire.columns import Int32, Int64, int32, int64

_SEED_STRIDE = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


class _Tokens:
    """Prompt and outputs of one sequence, in one column with room to grow."""

    def __init__(
        self, prompt: Int32, sampling: SamplingParams, block_size: int, parent: bytes, hashed: bool
    ) -> None:
        """`parent` is the hash before the first block that is not full; without `hashed` no block
        gets one.
        """
        self.num_prompt = len(prompt)
        self._num_blocks = len(prompt) // block_size  # full ones that are hashed
        self._parent = parent
        self.block_end = (self._num_blocks + 1) * block_size if hashed else -1  # of the next one
        self.length = len(prompt)  # tokens that are known
        self.sampling = sampling
        self.draft: Int32 = int32()  # tokens that may follow ...
        self.draft_at = -1  # ... the first `draft_at` known ones
        self._column = prompt
        self._is_own = False  # the prompt's column is never written to

    def slice(self, start: int, count: int) -> Int32:
        """Tokens [start, start + count) of prompt and outputs together, as far as they are known.

        They do not change when tokens are added.
        """
        return self._column[start : min(start + count, self.length)]

    def append(self, token: int) -> None:
        """Add the next output."""
        self._grow(self.length + 1)
        self._column[self.length] = token
        self.length += 1

    def hash_block(self, block_size: int) -> tuple[int, bytes]:
        """(index, hash) of the next block, which is full."""
        index = self._num_blocks
        tokens = self.slice(index * block_size, block_size).tolist()
        self._parent = chain_hashes(tokens, block_size, self._parent)
        self._num_blocks += 1
        return index, self._parent

    def look(self, news: Int32) -> int:
        """Draft after `news`, which come next; return how many tokens."""
        ends = self.length + len(news)
        self._grow(ends)
        self._column[self.length : ends] = news
        self.draft, self.draft_at = draft(self._column[:ends]), ends
        return len(self.draft)

    def _grow(self, length: int) -> None:
        """Make room for `length` tokens."""
        if length > len(self._column) or not self._is_own:
            column = np.empty(max(64, 2 * length), np.int32)
            column[: self.length] = self._column[: self.length]
            self._column, self._is_own = column, True


class FilledBlocks(NamedTuple):
    """Blocks that answers have filled: their sequences, their indices in them, and their hashes."""

    sequences: Int64
    at: Int32
    hashes: bytes


NO_BLOCKS = FilledBlocks(int64(), int32(), b"")


class TokenStore:
    """Prompt, outputs and sampling parameters of each sequence that has not ended."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sequences: dict[int, _Tokens] = {}
        self._filled: list[int] = []  # sequences, once for each block that is not hashed yet

    def add(self, request: int, message: Generate) -> None:
        """Store a request's tokens under the Core's id."""
        num_hashes = len(message.hashes) // HASH_BYTES
        hashed = num_hashes == len(message.tokens) // self._block_size  # else none is reused
        for index in range(message.n):
            seed = (message.sampling.seed + index * _SEED_STRIDE) & _SEED_MASK
            sampling = msgspec.structs.replace(message.sampling, seed=seed)
            self._sequences[sequence_id(request, index)] = _Tokens(
                message.tokens,
                sampling,
                self._block_size,
                message.hashes[-HASH_BYTES:] or message.salt,
                hashed,
            )

    def append(self, sequences: Int64, tokens: Int32) -> None:
        """Add output tokens; a sequence with several is named once for each."""
        held = self._sequences
        for sequence, token in zip(sequences.tolist(), tokens.tolist(), strict=True):
            known = held[sequence]
            known.append(token)
            if known.length == known.block_end:
                known.block_end += self._block_size
                self._filled.append(sequence)

    def hash_filled(self) -> FilledBlocks:
        """The blocks filled since the last call, hashed: those of sequences that have not ended."""
        if not self._filled:
            return NO_BLOCKS
        filled, self._filled = self._filled, []
        living = [sequence for sequence in filled if sequence in self._sequences]
        hashed = [self._sequences[sequence].hash_block(self._block_size) for sequence in living]
        return FilledBlocks(
            int64(living),
            int32([index for index, _ in hashed]),
            b"".join(digest for _, digest in hashed),
        )

    def slice(self, sequence: int, start: int, count: int) -> Int32:
        """Tokens [start, start + count); unknown ones are an error of the plan."""
        tokens = self._sequences[sequence].slice(start, count)
        if len(tokens) != count:
            raise LookupError(f"sequence {sequence}: tokens {start}+{count} are not known yet")
        return tokens

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted after `news`, which come next; 0 for a sequence that has
        ended or follows a grammar: its sampling depends on more than its tokens.
        """
        held = self._sequences.get(sequence)
        if held is None or held.sampling.grammar:
            return 0
        return held.look(news)

    def drafted(self, sequence: int, length: int, count: int) -> Int32:
        """The first `count` tokens drafted after the first `length`; if there are none, the plan is
        wrong.
        """
        held = self._sequences[sequence]
        if held.draft_at != length or len(held.draft) < count:
            raise LookupError(f"sequence {sequence}: no {count} tokens were drafted at {length}")
        return held.draft[:count]

    def join(self, slot: int, sequence: int) -> Join:
        """The message about a sequence that takes a slot, for the worker."""
        held = self._sequences[sequence]
        history = held.slice(0, held.length) if held.sampling.needs_history else int32()
        return Join(slot, sequence, held.num_prompt, held.sampling, history)

    def drop(self, sequence: int) -> None:
        """Forget an ended sequence."""
        del self._sequences[sequence]

    def drop_request(self, request: int, n: int) -> None:
        """Forget a request that was refused."""
        for index in range(n):
            self.drop(sequence_id(request, index))

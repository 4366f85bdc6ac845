"""The prefix cache: an index from chain hashes to blocks, and the idle blocks among them."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from daemon.memory.idle_queue import IdleQueue
from daemon.wire.columns import Blocks, UInt8, any_true


class PrefixCache:
    """An index from chain hashes to blocks; idle blocks are evicted in the order they were left."""

    def __init__(self, num_blocks: int) -> None:
        self._block_by_digest: dict[bytes, int] = {}
        self._digests = [b""] * num_blocks  # meaningless where a block is not named
        self._named = bytearray(num_blocks)  # 1 where there is a digest: read one at a time,
        self._named_column = np.frombuffer(self._named, np.bool_)  # and many at once
        self.idle = IdleQueue(num_blocks)  # blocks without an owner, which can be evicted

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of these chain hashes."""
        blocks = []
        for block in map(self._block_by_digest.get, digests):
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, digest: bytes) -> int:
        """The block of a chain hash; -1: none is known."""
        return self._block_by_digest.get(digest, -1)

    def is_named(self, block: int) -> bool:
        """Whether a block's tokens are named."""
        return bool(self._named[block])

    def register(self, digests: list[bytes], blocks: list[int]) -> None:
        """Name the tokens of blocks; a digest or block that is named already stays as it was.

        Raises ValueError if the lengths differ.
        """
        named, by_digest, of_block = self._named, self._block_by_digest, self._digests
        for digest, block in zip(digests, blocks, strict=True):
            if not named[block] and by_digest.setdefault(digest, block) == block:
                of_block[block] = digest
                named[block] = 1

    def unname(self, blocks: list[int]) -> None:
        """Name the tokens of these held blocks no longer."""
        for block in blocks:
            if self._named[block]:
                del self._block_by_digest[self._digests[block]]
                self._named[block] = 0

    def digest(self, block: int) -> bytes:
        """The chain hash of a named block. Raises LookupError for another."""
        if not self._named[block]:
            raise LookupError(f"block {block} is not named")
        return self._digests[block]

    def num_idle(self, blocks: list[int]) -> int:
        """How many of these blocks are cached and have no owner."""
        return self.idle.count(blocks)

    def leave(self, blocks: Blocks) -> Blocks:
        """The last owner released these blocks: keep those that are named, return the others."""
        named = self._named_column[blocks]
        if not any_true(named):
            return blocks
        self.idle.push(blocks[named])
        rest: Blocks = blocks[~named]
        return rest

    def take(self, blocks: list[int]) -> None:
        """These idle blocks have an owner again."""
        self.idle.take(blocks)

    def evict(self, count: int) -> Blocks:
        """Unname the blocks that have been idle longest, and return them."""
        blocks = self.idle.pop(count)
        self._named_column[blocks] = False
        digests = map(self._digests.__getitem__, blocks.tolist())
        deque(map(self._block_by_digest.pop, digests), maxlen=0)  # many at a time: no loop here
        return blocks

    def named(self) -> UInt8:
        """1 where a block's tokens are named, held or not; uint8 [num_blocks]; a copy."""
        return self._named_column.astype(np.uint8)

    def idle_blocks(self) -> list[int]:
        """The idle blocks, longest idle first."""
        blocks: list[int] = self.idle.blocks().tolist()
        return blocks

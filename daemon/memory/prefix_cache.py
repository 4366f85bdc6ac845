"""Which blocks hold which tokens, and which of them nobody holds any more."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from daemon.wire.columns import UInt8


class PrefixCache:
    """An index from chain hashes to blocks, and the idle ones in the order they were left."""

    def __init__(self, num_blocks: int) -> None:
        self._block_by_digest: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * num_blocks
        self._named = bytearray(num_blocks)  # 1 where there is a digest, for viewers
        # Not a dict: one whose first keys are deleted again and again walks over their graves.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and that can be evicted."""
        return len(self._idle)

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix of these chain hashes."""
        blocks = []
        for digest in digests:
            block = self._block_by_digest.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def register(self, digest: bytes, block: int) -> None:
        """Name a block's tokens; a digest or block that is named already stays as it was."""
        if self._digests[block] is None and digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digests[block] = digest
            self._named[block] = 1

    def digest(self, block: int) -> bytes:
        """The chain hash of a named block. Raises LookupError for another."""
        digest = self._digests[block]
        if digest is None:
            raise LookupError(f"block {block} is not named")
        return digest

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and held by nobody."""
        return block in self._idle

    def leave(self, blocks: Iterable[int]) -> list[int]:
        """The last holder let go of these blocks; those of them whose tokens are not named."""
        idle, digests, unnamed = self._idle, self._digests, []
        for block in blocks:
            if digests[block] is None:
                unnamed.append(block)
            else:
                idle[block] = None
        return unnamed

    def take(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def evict(self, count: int) -> list[int]:
        """Forget the blocks that have been idle longest, and return them."""
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            del self._block_by_digest[self.digest(block)]
            self._digests[block] = None
            self._named[block] = 0
        return blocks

    def named(self) -> UInt8:
        """1 where a block's tokens are named, held or not; uint8 [num_blocks]; a copy."""
        return np.frombuffer(self._named, np.uint8).copy()

    def idle_blocks(self) -> list[int]:
        """The idle blocks, longest idle first."""
        return list(self._idle)

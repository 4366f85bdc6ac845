"""Which blocks hold which tokens, and which of them nobody holds any more."""

from collections.abc import Iterable
from itertools import islice


class PrefixCache:
    """An index from chain hashes to blocks, and the idle ones in the order they were left."""

    def __init__(self) -> None:
        self._block_by_digest: dict[bytes, int] = {}
        self._digest_by_block: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}

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
        if digest not in self._block_by_digest and block not in self._digest_by_block:
            self._block_by_digest[digest] = block
            self._digest_by_block[block] = digest

    def knows(self, block: int) -> bool:
        """Whether the block's tokens are named."""
        return block in self._digest_by_block

    def digest(self, block: int) -> bytes:
        """The chain hash of a named block. Raises KeyError for another."""
        return self._digest_by_block[block]

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and held by nobody."""
        return block in self._idle

    def leave(self, block: int) -> None:
        """The last holder of a named block let go of it."""
        self._idle[block] = None

    def take(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def evict(self, count: int) -> list[int]:
        """Forget the blocks that have been idle longest, and return them."""
        blocks = list(islice(self._idle, count))
        for block in blocks:
            del self._idle[block]
            del self._block_by_digest[self._digest_by_block.pop(block)]
        return blocks

    def idle_blocks(self) -> list[int]:
        """The idle blocks, longest idle first."""
        return list(self._idle)

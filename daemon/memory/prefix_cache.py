"""Which blocks hold which tokens, and which of them nobody holds any more."""

from collections.abc import Iterable
from itertools import islice


class PrefixCache:
    """An index from chain hashes to blocks, and the idle ones in the order they were left."""

    def __init__(self, num_blocks: int) -> None:
        self._block_by_digest: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * num_blocks
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
        if self._digests[block] is None and digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digests[block] = digest

    def digest(self, block: int) -> bytes:
        """The chain hash of a named block. Raises LookupError for another."""
        digest = self._digests[block]
        if digest is None:
            raise LookupError(f"block {block} is not named")
        return digest

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and held by nobody."""
        return block in self._idle

    def leave(self, block: int) -> bool:
        """The last holder of a block let go of it; False if its tokens are not named."""
        if self._digests[block] is None:
            return False
        self._idle[block] = None
        return True

    def take(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def evict(self, count: int) -> list[int]:
        """Forget the blocks that have been idle longest, and return them."""
        blocks = list(islice(self._idle, count))
        for block in blocks:
            del self._idle[block]
            del self._block_by_digest[self.digest(block)]
            self._digests[block] = None
        return blocks

    def idle_blocks(self) -> list[int]:
        """The idle blocks, longest idle first."""
        return list(self._idle)

"""Uploads ahead of need: KV of waiting sequences comes back before they get a slot.

FastServe section 4.2: of the sequences in host memory the one with the smallest ENST is uploaded
first, while there is room. ENST grows along the order of the queue (see `residency.py`), and along
that in which streams come due. An uploaded block has no owner: it is idle, and named by its
sequence, as those of the prefix cache are by their tokens. So it costs nothing to give up when
another sequence needs the block, and the copy in host memory stays until the sequence has its slot.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from daemon.memory.block_pool import BlockPool
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import SwapSpace
from daemon.state.sequence import Sequence, Where

UPLOAD_SHARE = 0.125
"""The largest share of the pool that holds KV uploaded ahead, of the sequences looked at."""

MOST_CANDIDATES = 8
"""Waiting sequences that are looked at in a plan."""

_NAME = struct.Struct("<qii")
"""A sequence, a block's place in it, and its tokens there: as long as a digest of `HASH_BYTES`."""


class Uploads:
    """The blocks of one instance that are uploaded ahead, and their counts."""

    def __init__(self) -> None:
        self.num_ordered = 0  # blocks, in all
        self.num_used = 0  # of them, found by their sequences when these got a slot
        self._flying: deque[tuple[int, list[bytes], list[int]]] = deque()

    def reset(self) -> None:
        """Forget what is on its way, as a worker began or died."""
        self._flying.clear()

    def found(self, sequence: Sequence, first: int, kv: KVCache) -> list[int]:
        """The device blocks that have a waiting sequence's KV from its block `first` on."""
        return kv.pool.cache.match(_names(sequence, first, kv))

    def take(self, blocks: list[int], pool: BlockPool) -> None:
        """Count blocks that their sequence found and owns from now on: it will write to them."""
        self.num_used += len(blocks)
        pool.cache.unname(blocks)

    def order(
        self,
        candidates: Iterable[Sequence],
        kv: KVCache,
        space: SwapSpace,
        step: int,
        most: int,
        share: float,
    ) -> None:
        """Order uploads of at most `most` blocks with the plan of `step`, and of at most a share of
        the pool in all. `candidates` come in their order; one that may come for two reasons is
        uploaded once.
        """
        pool = kv.pool
        allowed = int(share * pool.num_blocks)
        for sequence in dict.fromkeys(candidates):
            residence = sequence.residence
            if residence.where is not Where.HOST:
                continue
            known, parked = sequence.num_known_tokens, residence.parked_tokens
            num_cached = len(kv.cached_to_move(sequence.hashes, known, parked))
            there = self.found(sequence, num_cached, kv)
            allowed -= len(there)
            first = num_cached + len(there)
            count = min(kv.num_to_move(parked) - first, most, allowed)
            if count > 0:
                blocks = pool.allocate(count)
                space.copy_in(residence, first, blocks, step)
                pool.name_in_copy(blocks, step)
                pool.release(blocks, 0)
                names = list(islice(_names(sequence, first, kv), count))
                self._flying.append((step, names, blocks))
                self.num_ordered += count
                most -= count
                allowed -= count
            if most <= 0 or allowed <= 0:
                return

    def arrived(self, step: int, pool: BlockPool) -> None:
        """Name the blocks of all uploads of the plans up to `step`, before their fences are lifted:
        from now on their sequences find them.
        """
        while self._flying and self._flying[0][0] <= step:
            _, names, blocks = self._flying.popleft()
            pool.cache.register(names, blocks)


def _names(sequence: Sequence, first: int, kv: KVCache) -> Iterator[bytes]:
    """The names of a sequence's parked blocks from the `first` on: by their place and their tokens,
    since the last one may be part full and full the next time. Where layers have windows a block's
    place goes by all parked tokens.
    """
    parked, block_size = sequence.residence.parked_tokens, kv.block_size
    for index in range(first, kv.num_to_move(parked)):
        tokens = parked if kv.has_windows else min(parked - index * block_size, block_size)
        yield _NAME.pack(sequence.id, index, tokens)

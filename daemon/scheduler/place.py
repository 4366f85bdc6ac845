"""How a waiting sequence would be seated."""

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where its computed tokens come from, and the blocks that it takes."""

    leader: int  # slot whose prompt it shares, or -1
    matched: list[int]  # device blocks of its prefix found in the cache
    num_shared_tokens: int  # already computed: by the leader, in the cache, or in host memory
    num_blocks: int  # in all
    num_reusable: int = 0  # blocks of the leader's that it shares
    returns: bool = False  # blocks have to come from host memory

"""How one sequence would be admitted."""

import msgspec

from daemon.state.story import What


class AdmissionPlan(msgspec.Struct, frozen=True):
    """The plan of one admission: the blocks that it takes, and where computed tokens come from."""

    leader: int  # slot whose prompt it shares, or -1
    matched: list[int]  # device blocks of its prefix found in the cache
    num_shared_tokens: int  # already computed: by the leader, in the cache, or in host memory
    num_blocks: int  # in all
    num_reusable: int  # of them, those that another sequence or the cache has
    num_reserved: int = 0  # it holds at most, which are reserved for it; 0: without a reservation
    fetches: bool = False  # blocks have to come from host memory

    @property
    def num_new_blocks(self) -> int:
        """Blocks that have to be there for it: to be allocated, or reserved."""
        reserved = self.num_reserved
        num_blocks = max(self.num_blocks, reserved) if reserved else self.num_blocks
        return num_blocks - self.num_reusable

    @property
    def what(self) -> str:
        """Where its computed tokens come from, as a sequence's story tells it."""
        if self.leader >= 0:
            return What.SHARED
        return What.FETCHED if self.fetches else What.ADMITTED

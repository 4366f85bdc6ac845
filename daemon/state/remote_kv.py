"""Remote KV: the KV of a sequence that left an instance, in the pool where it was computed.

It owns its blocks, as a slot does. A transfer that reads them has a share of its own, so remote KV
may be dropped at any time: what is not sent is computed again.
"""

from typing import Protocol


class _Pool(Protocol):
    """The part of a block pool that remote KV needs."""

    def let_go(self, blocks: list[int]) -> None:
        """Take an owner from each block."""


class _Keeper(Protocol):
    """The list that remote KV stands in."""

    def remove(self, sequence: int, remote_kv: "RemoteKV") -> None:
        """Take a sequence's remote KV out of the list."""


class RemoteKV:
    """The first `num_tokens` of a sequence, in blocks of one instance's KV pool or host pool."""

    __slots__ = (
        "blocks",
        "from_host",
        "instance",
        "is_computed",
        "kept_in",
        "num_tokens",
        "pool",
    )

    def __init__(
        self,
        instance: int,
        pool: _Pool,
        blocks: list[int],
        num_tokens: int,
        from_host: bool = False,
        is_computed: bool = False,
    ) -> None:
        """It has the blocks from now on: the caller counted it as an owner. `is_computed`: all
        steps that computed any of it have answered.
        """
        self.instance = instance
        self.pool = pool
        self.blocks = blocks
        self.num_tokens = num_tokens
        self.from_host = from_host
        self.is_computed = is_computed
        self.kept_in: _Keeper | None = None

    def drop(self) -> None:
        """Let go of the blocks; nothing of the KV is here any more."""
        blocks, self.blocks, self.num_tokens = self.blocks, [], 0
        if blocks:
            self.pool.let_go(blocks)

    def lose(self) -> None:
        """The worker that had the blocks is gone, and its pool with it."""
        self.blocks, self.num_tokens = [], 0

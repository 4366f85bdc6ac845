"""Remote KV in one instance's pools: KV of sequences that left, and fetches by those that came.

FastServe and ALISE swap to host memory; a handoff is a swap whose host pool is another instance's.
So a sequence that queues elsewhere has its KV here as remote KV, until it is fetched or given up.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from daemon.state.remote_kv import RemoteKV
from daemon.state.sequence import Sequence, Where


class Fetch(NamedTuple):
    """The blocks of its remote KV that an admitted sequence needs: from number `first` on."""

    sequence: Sequence
    remote_kv: RemoteKV
    first: int
    targets: list[int]  # device blocks here


class RemoteKVs:
    """KV left here by sequences that moved away, and fetches by those that moved in."""

    def __init__(self, instance: int, move: Callable[[Sequence, Where], None]) -> None:
        """`move` changes where a sequence's KV is. `is_stuck`, which the owner of all instances
        sets, says whether nothing runs where a sequence waits, which might make room there.
        """
        self.instance = instance
        self.by_id: dict[int, Sequence] = {}
        self.num_blocks = 0  # of the KV pool, that only wait to be fetched from elsewhere
        self.num_places = 0  # of the host pool, likewise
        self.fetches: list[Fetch] = []  # not ordered yet
        self.coming: Counter[bytes] = Counter()  # digests of blocks on their way into this pool
        self.is_stuck: Callable[[Sequence], bool] = lambda _sequence: True
        self._move = move

    def reset(self) -> None:
        """The worker is gone or new: nothing is here."""
        for sequence in list(self.by_id.values()):
            self.drop(sequence, is_lost=True)
        self.fetches.clear()
        self.coming.clear()

    def __len__(self) -> int:
        return len(self.by_id)

    def _count(self, remote_kv: RemoteKV, sign: int) -> None:
        if remote_kv.from_host:
            self.num_places += sign * len(remote_kv.blocks)
        else:
            self.num_blocks += sign * len(remote_kv.blocks)

    def keep(self, sequence: Sequence, remote_kv: RemoteKV) -> None:
        """A sequence leaves, and this is its KV."""
        sequence.residence.remote_kv = remote_kv
        sequence.residence.parked_tokens = remote_kv.num_tokens
        self._move(sequence, Where.AWAY)
        self.by_id[sequence.id] = sequence
        self._count(remote_kv, 1)
        remote_kv.kept_in = self

    def remove(self, sequence: int, remote_kv: RemoteKV) -> None:
        """Take a sequence's remote KV out of the list; it still has the blocks it was kept with."""
        if self.by_id.pop(sequence, None) is not None:
            self._count(remote_kv, -1)

    def take_home(self, sequence: Sequence) -> RemoteKV | None:
        """Take the remote KV of a sequence that is queued here again, if this host pool has it."""
        remote_kv = sequence.residence.remote_kv
        if remote_kv is None or remote_kv.instance != self.instance or not remote_kv.from_host:
            return None
        sequence.residence.remote_kv = None
        self.remove(sequence.id, remote_kv)
        return remote_kv

    def drop(self, sequence: Sequence, is_lost: bool = False) -> None:
        """Let go of a sequence's remote KV, wherever it is; it is computed again if needed."""
        residence = sequence.residence
        remote_kv, residence.remote_kv = residence.remote_kv, None
        if remote_kv is not None:
            if remote_kv.kept_in is not None:
                remote_kv.kept_in.remove(sequence.id, remote_kv)
            if is_lost:
                remote_kv.lose()
            else:
                remote_kv.drop()
        if residence.where is Where.AWAY:
            self._move(sequence, Where.NOWHERE)
            residence.parked_tokens = 0

    def give_up(self, num_blocks: int, favoured: Sequence, patient: bool = True) -> bool:
        """Give up remote KV of others to free `num_blocks` of the KV pool, the newest first;
        whether there was any. `patient`: not of sequences that wait where something runs, as they
        get room there in time.
        """
        dropped = False
        for sequence in list(self.by_id.values())[::-1]:
            remote_kv = sequence.residence.remote_kv
            waits = sequence.residence.where is Where.AWAY and sequence is not favoured
            if remote_kv is None or remote_kv.from_host or num_blocks <= 0 or not waits:
                continue
            if not patient or sequence.instance == self.instance or self.is_stuck(sequence):
                num_blocks -= len(remote_kv.blocks)
                self.drop(sequence)
                dropped = True
        return dropped

    def forget_fetch(self, sequence: Sequence) -> None:
        """Drop a sequence's fetch that is not ordered yet."""
        if self.fetches:
            self.fetches = [fetch for fetch in self.fetches if fetch.sequence is not sequence]

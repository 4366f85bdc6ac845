"""The parcels in one instance's pools: KV of sequences that left, and what comes here of others.

FastServe and ALISE swap to host memory; a handoff is a swap whose host pool is another instance's.
So a sequence that queues elsewhere has its KV here as a parcel, until it is fetched or given up.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from daemon.state.parcel import Parcel
from daemon.state.sequence import Sequence, Where


class Fetch(NamedTuple):
    """What a sequence that was admitted needs of its parcel: from its block number `first` on."""

    sequence: Sequence
    parcel: Parcel
    first: int
    targets: list[int]  # device blocks here


class Parcels:
    """Who left and has its KV here; what those that came here have asked for of theirs."""

    def __init__(self, instance: int, move: Callable[[Sequence, Where], None]) -> None:
        """`move` changes where a sequence's KV is. `is_stuck`, which the owner of all instances
        sets, says whether nothing runs where a sequence waits, which might make room there.
        """
        self.instance = instance
        self.by_id: dict[int, Sequence] = {}
        self.num_blocks = 0  # of the KV pool, that only wait to be fetched from elsewhere
        self.num_places = 0  # of the host pool, likewise
        self.fetches: list[Fetch] = []  # that nobody has ordered yet
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

    def _count(self, parcel: Parcel, sign: int) -> None:
        if parcel.from_host:
            self.num_places += sign * len(parcel.blocks)
        else:
            self.num_blocks += sign * len(parcel.blocks)

    def keep(self, sequence: Sequence, parcel: Parcel) -> None:
        """A sequence leaves, and this is its KV."""
        sequence.residence.parcel = parcel
        sequence.residence.parked_tokens = parcel.num_tokens
        self._move(sequence, Where.AWAY)
        self.by_id[sequence.id] = sequence
        self._count(parcel, 1)
        parcel.kept_in = self

    def remove(self, sequence: int, parcel: Parcel) -> None:
        """A sequence's parcel is none any more; it has the blocks that it was kept with still."""
        if self.by_id.pop(sequence, None) is not None:
            self._count(parcel, -1)

    def take_home(self, sequence: Sequence) -> Parcel | None:
        """The parcel of a sequence that is queued here again, if it lies in this host pool; it is
        none any more.
        """
        parcel = sequence.residence.parcel
        if parcel is None or parcel.instance != self.instance or not parcel.from_host:
            return None
        sequence.residence.parcel = None
        self.remove(sequence.id, parcel)
        return parcel

    def drop(self, sequence: Sequence, is_lost: bool = False) -> None:
        """Let go of a sequence's parcel, wherever it is; who waits for it is computed again."""
        residence = sequence.residence
        parcel, residence.parcel = residence.parcel, None
        if parcel is not None:
            if parcel.kept_in is not None:
                parcel.kept_in.remove(sequence.id, parcel)
            if is_lost:
                parcel.lose()
            else:
                parcel.drop()
        if residence.where is Where.AWAY:
            self._move(sequence, Where.NOWHERE)
            residence.parked_tokens = 0

    def give_up(self, num_blocks: int, favoured: Sequence, patient: bool = True) -> bool:
        """Give up parcels of others for so many blocks of the KV pool, the newest first; whether
        there were any. `patient`: not of those that wait where something runs, as they get room
        there in time.
        """
        dropped = False
        for sequence in list(self.by_id.values())[::-1]:
            parcel = sequence.residence.parcel
            waits = sequence.residence.where is Where.AWAY and sequence is not favoured
            if parcel is None or parcel.from_host or num_blocks <= 0 or not waits:
                continue
            if not patient or sequence.instance == self.instance or self.is_stuck(sequence):
                num_blocks -= len(parcel.blocks)
                self.drop(sequence)
                dropped = True
        return dropped

    def forget_fetch(self, sequence: Sequence) -> None:
        """What a sequence asked for is not to be ordered any more."""
        if self.fetches:
            self.fetches = [one for one in self.fetches if one.sequence is not sequence]

    def is_coming(self, sequence: Sequence, index: int) -> bool:
        """Whether a sequence's block of this number is on its way into this pool."""
        hashes = sequence.hashes
        return bool(self.coming) and index < len(hashes) and hashes[index] in self.coming

"""Links and transfers of instances of ranks, each reported as one worker would report it.

Ranks have links of their own, over which they send their parts of each block
(`daemon/models/kv_parts.py` says which to which). A link of two instances is up once all of their
ranks' are, and down once none is: a part that still arrives would be written to blocks that
somebody else has by then. So the first that is down takes the others with it. A transfer is over
once every part is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from daemon.models.kv_parts import RankLink
from daemon.protocol.worker import EndLink, LinkState, TransferOver
from daemon.runtime.transfer_watchdog import Pair

PairLinks = Mapping[Pair, Sequence[RankLink]]
"""The links between ranks, from one instance to another; without any, no blocks go."""

_End = tuple[int, int]
"""A rank of an instance, and the rank of the other instance that it has a link to or from."""


@dataclass(slots=True)
class _RankEnds:
    """One instance's ends of a link."""

    up: dict[_End, LinkState] = field(default_factory=dict)
    down: dict[_End, LinkState] = field(default_factory=dict)


@dataclass(slots=True)
class _Parts:
    """A transfer, and the parts of it that are over at each of its instances that owes some."""

    pair: Pair
    over: dict[int, dict[_End, TransferOver]]


class RankLinks:
    """News of links and transfers that not all ranks of an instance have told yet."""

    def __init__(self, pairs: PairLinks, end_link: Callable[[int, int, EndLink], None]) -> None:
        """`end_link(instance, rank, message)` sends to a rank."""
        self._pairs, self._end_link = pairs, end_link
        self._ends: dict[tuple[int, int], _RankEnds] = {}  # by instance and link
        self._parts: dict[int, _Parts] = {}  # by transfer

    def sent(self, transfer: int, pair: Pair) -> None:
        """Both instances owe the ends of a transfer from now on."""
        self._parts[transfer] = _Parts(pair, {instance: {} for instance in pair})

    def state(self, instance: int, rank: int, state: LinkState) -> LinkState | None:
        """The state of the whole instance's end, where a rank's changes it."""
        pair = (instance, state.peer) if state.sends else (state.peer, instance)
        count = len(self._pairs[pair])
        if count == 1:
            return state
        ends = self._ends.setdefault((instance, state.link), _RankEnds())
        if state.is_up:
            ends.up[rank, state.peer_rank] = state
            if ends.down or len(ends.up) < count:
                return None
            direct = all(each.direct for each in ends.up.values())
            return msgspec.structs.replace(state, direct=direct)
        is_first = not ends.down
        ends.down[rank, state.peer_rank] = state
        if is_first:
            others = self._ends_of(instance, pair) - {(rank, state.peer_rank)}
            for own in sorted({own for own, _ in others}):
                self._end_link(instance, own, EndLink(state.peer, state.sends, state.link))
        if len(ends.down) < count:
            return None
        del self._ends[instance, state.link]
        return next(iter(ends.down.values()))

    def over(self, instance: int, rank: int, over: TransferOver) -> TransferOver | None:
        """The end of a transfer at the whole instance, once each rank has said its own."""
        found = self._parts.get(over.transfer)
        if found is None or instance not in found.over:
            return over
        ends, parts = self._ends_of(instance, found.pair), found.over[instance]
        if (rank, over.peer_rank) in ends:
            parts[rank, over.peer_rank] = over
        if len(parts) < len(ends):
            return None
        self._settle(instance, over.transfer)
        return TransferOver(
            over.transfer,
            min(part.num_right for part in parts.values()),
            max(part.elapsed_s for part in parts.values()),
            next((part.why for part in parts.values() if part.why), ""),
        )

    def keep(self, instance: int, open_transfers: Collection[int]) -> None:
        """Forget all transfers of an instance but these: a link's end has settled the others."""
        for transfer in [number for number in self._parts if number not in open_transfers]:
            self._settle(instance, transfer)

    def lost(self, instance: int) -> None:
        """An instance's ranks are gone, and say nothing more."""
        self.keep(instance, ())
        for at, link in list(self._ends):
            if at == instance:
                del self._ends[at, link]

    def _ends_of(self, instance: int, pair: Pair) -> set[_End]:
        """An instance's ends of a link."""
        ends = ((link.source, link.target) for link in self._pairs[pair])
        return {end if instance == pair[0] else end[::-1] for end in ends}

    def _settle(self, instance: int, transfer: int) -> None:
        """An instance owes nothing more of a transfer."""
        owed = self._parts[transfer].over
        owed.pop(instance, None)
        if not owed:
            del self._parts[transfer]

"""Links and transfers of instances of ranks, each reported as one worker would report it.

Every rank has its own link to the rank of the same number at the other instance, over which it
sends its part of each block. A link is up once all ranks have theirs, and down once none has: a
part that still arrives would be written to blocks that somebody else has by then. So the first that
is down takes the others with it. A transfer is over once every rank's part is.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from daemon.protocol.worker import EndLink, LinkState, TransferOver


class RankSplit(msgspec.Struct, frozen=True):
    """How an instance divides its model among ranks; blocks go between instances of equal ones."""

    num_ranks: int = 1
    stage_layers: tuple[int, ...] = ()  # of each stage; empty: ranks have shares of all layers


@dataclass(slots=True)
class _RankEnds:
    """One end of a link, of all ranks of an instance."""

    up: dict[int, LinkState] = field(default_factory=dict)  # by rank
    down: dict[int, LinkState] = field(default_factory=dict)


class RankLinks:
    """News of links and transfers that not all ranks of an instance have told yet."""

    def __init__(
        self, num_ranks: Sequence[int], end_link: Callable[[int, int, EndLink], None]
    ) -> None:
        """`num_ranks`: of each instance. `end_link(instance, rank, message)` sends to a rank."""
        self._num_ranks, self._end_link = num_ranks, end_link
        self._ends: dict[tuple[int, int], _RankEnds] = {}  # by instance and link
        self._parts: dict[tuple[int, int], dict[int, TransferOver]] = {}  # and transfer

    def state(self, instance: int, rank: int, state: LinkState) -> LinkState | None:
        """The state of the whole instance's end, where a rank's changes it."""
        count = self._num_ranks[instance]
        if count == 1:
            return state
        ends = self._ends.setdefault((instance, state.link), _RankEnds())
        if state.is_up:
            ends.up[rank] = state
            if ends.down or len(ends.up) < count:
                return None
            direct = all(each.direct for each in ends.up.values())
            return msgspec.structs.replace(state, direct=direct)
        is_first = not ends.down
        ends.down[rank] = state
        if is_first:
            for other in range(count):
                if other != rank:
                    self._end_link(instance, other, EndLink(state.peer, state.sends, state.link))
        if len(ends.down) < count:
            return None
        del self._ends[instance, state.link]
        return next(iter(ends.down.values()))

    def over(self, instance: int, rank: int, over: TransferOver) -> TransferOver | None:
        """The end of a transfer at the whole instance, once each rank has said its own."""
        count = self._num_ranks[instance]
        if count == 1:
            return over
        parts = self._parts.setdefault((instance, over.transfer), {})
        parts[rank] = over
        if len(parts) < count:
            return None
        del self._parts[instance, over.transfer]
        return TransferOver(
            over.transfer,
            min(part.num_right for part in parts.values()),
            max(part.elapsed_s for part in parts.values()),
            next((part.why for part in parts.values() if part.why), ""),
        )

    def keep(self, instance: int, open_transfers: Collection[int]) -> None:
        """Forget all transfers of an instance but these: a link's end has settled the others."""
        for at, transfer in list(self._parts):
            if at == instance and transfer not in open_transfers:
                del self._parts[at, transfer]

    def lost(self, instance: int) -> None:
        """An instance's ranks are gone, and say nothing more."""
        self.keep(instance, ())
        for at, link in list(self._ends):
            if at == instance:
                del self._ends[at, link]

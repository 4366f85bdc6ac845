"""Transfers: blocks on their way from one instance's pool to another's, and the links they take.

A transfer owns a share of its blocks at both ends, whatever happens to the sequence meanwhile. Each
end lets go of its share by its own worker's answer alone: the source may be reading, the target's
blocks may be written, until then. A worker that died has no pool any more, and its end is over.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from daemon.core.instance.instance import Instance
from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged
from daemon.cost.link_time import LinkTime
from daemon.memory.block_pool import BlockPool
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.remote_kv import Fetch
from daemon.state.sequence import Sequence
from daemon.wire.columns import int32


@dataclass(slots=True, eq=False)
class OpenTransfer:
    """Some of a sequence's blocks on their way. An end's pool is None once that end is over."""

    number: int
    sequence: Sequence
    source: int
    target: int
    blocks: list[int]
    targets: list[int]
    digests: list[bytes]  # of the first blocks, as far as known
    first: int  # the number of the first in the sequence; 0 where layers have windows
    num_tokens: int
    link: int
    ahead: bool  # no sequence waits for it: landed blocks are cached
    from_host: bool
    layered: bool  # it goes with the step that computes it
    began_s: float
    source_pool: BlockPool | None
    target_pool: BlockPool | None
    step: int = 0  # of the source, which computes a layered transfer
    at_once: bool = False  # no plan in flight computes any of it
    num_right: int = -1  # of a layered transfer that landed before its step answered

    @property
    def over(self) -> bool:
        """Whether both ends are over."""
        return self.source_pool is None and self.target_pool is None


class LinkEnds:
    """The links between workers, as both ends reported them."""

    def __init__(self) -> None:
        # The number of each end's link that is up, by (instance, peer, whether it sends).
        self._ends: dict[tuple[int, int, bool], int] = {}
        self._times: dict[tuple[int, int], LinkTime] = {}
        self.num_changes = 0

    def change(self, event: LinkChanged) -> None:
        """Note that one end is up or down."""
        self.num_changes += 1
        end = (event.instance, event.peer, event.sends)
        if event.is_up:
            self._ends[end] = event.link
        elif self._ends.get(end) == event.link:
            del self._ends[end]

    def lost(self, instance: int) -> None:
        """Drop the ends of a worker that died."""
        self.num_changes += 1
        self._ends = {end: link for end, link in self._ends.items() if end[0] != instance}

    def link(self, source: int, target: int) -> int:
        """The number of the link from source to target with both ends up; -1: none."""
        link = self._ends.get((source, target, True), -1)
        return link if link == self._ends.get((target, source, False)) else -1

    def up(self, source: int, target: int) -> bool:
        """Whether blocks can go from source to target."""
        return self.link(source, target) >= 0

    def time(self, source: int, target: int) -> LinkTime:
        """The learned time of transfers from source to target."""
        time = self._times.get((source, target))
        if time is None:
            time = self._times[source, target] = LinkTime()
        return time

    def known_times(self) -> list[LinkTime]:
        """The learned times of all links asked for."""
        return [time for _, time in sorted(self._times.items())]

    def state(self) -> list[tuple[int, int, bool, int]]:
        """All ends that are up: (instance, peer, whether it sends, link)."""
        return [(*end, link) for end, link in sorted(self._ends.items())]

    def restore(self, ends: Listing[tuple[int, int, bool, int]]) -> None:
        """Restore the ends."""
        self.num_changes += 1
        self._ends = {(instance, peer, sends): link for instance, peer, sends, link in ends}

    def learned(self) -> list[tuple[int, int, tuple[float, ...]]]:
        """The learned times: (source, target, a model's state)."""
        return [(*way, time.state()) for way, time in sorted(self._times.items())]

    def restore_times(self, times: Listing[tuple[int, int, tuple[float, ...]]]) -> None:
        """Restore the learned times."""
        self._times = {
            (source, target): LinkTime.restored(state) for source, target, state in times
        }


class Transfers:
    """The transfers in flight, by number; a number is never used again."""

    def __init__(self, instances: Listing[Instance]) -> None:
        self._instances = instances
        self.links = LinkEnds()
        self.open: dict[int, OpenTransfer] = {}
        self._of: dict[Sequence, list[OpenTransfer]] = {}  # by sequence
        self._early: list[dict[int, OpenTransfer]] = [{} for _ in instances]  # see `answered`
        self.num_ordered = 0

    def __iter__(self) -> Iterator[OpenTransfer]:
        return iter(self.open.values())

    def of(self, sequence: Sequence) -> Listing[OpenTransfer]:
        """The transfers of one sequence, oldest first."""
        return self._of.get(sequence, ())

    def ahead_of(self, sequence: Sequence) -> bool:
        """Whether blocks of a sequence are on their way ahead of it."""
        return any(
            transfer.ahead and transfer.target_pool is not None for transfer in self.of(sequence)
        )

    # Ordering

    def fetch(self, fetch: Fetch, target: int, now: float) -> Send | None:
        """Send the remote KV that an admitted sequence lacks; None where no link is up."""
        remote_kv, source = fetch.remote_kv, fetch.remote_kv.instance
        if not remote_kv.blocks or not self.links.up(source, target):
            return None
        blocks = remote_kv.blocks[fetch.first :]
        sequence, kv = fetch.sequence, self._instances[target].kv
        first, digests = fetch.first, sequence.hashes[fetch.first :]
        if kv.has_windows:  # the slot names its blocks, once all have come
            first, digests = 0, []
        columns = blocks, fetch.targets
        ordered = self._order(sequence, (source, target), columns, digests, first, now)
        ordered.from_host, ordered.at_once = remote_kv.from_host, remote_kv.is_computed
        ordered.num_tokens = remote_kv.num_tokens - first * kv.block_size
        host = self._instances[source].moving.host_pool
        pool = host if remote_kv.from_host else self._pool(source)
        self._own(ordered, pool, shared=True)
        fetch.sequence.residence.transfer = ordered.number
        return _send(ordered, kv)

    def send_ahead(
        self, sequence: Sequence, target: int, least: int, now: float, layered: bool = False
    ) -> Send | None:
        """Send the named full blocks of a running sequence that the target lacks, of layers with
        windows none; None if they are fewer than `least`, no link is up, or the target has no room
        to spare. Blocks of several kinds do not go by layers.
        """
        source, there = sequence.instance, self._instances[target]
        if not self.links.up(source, target) or (layered and there.kv.has_windows):
            return None
        names = there.kv.names_of(sequence.hashes[: sequence.num_sealed_blocks])
        first = len(there.kv.pool.cache.match(names))
        while first < len(names) and names[first] in there.moving.remote_kvs.coming:
            first += 1
        count = min(len(names) - first, there.moving.num_room)
        if count < least:
            return None
        columns = (
            self._instances[source].kv.lasting(sequence.slot, first, count),
            there.kv.pool.allocate(count),
        )
        ordered = self._order(sequence, (source, target), columns, names[first:], first, now)
        ordered.ahead, ordered.layered = True, layered
        if layered:
            ordered.step = self._instances[source].scheduler.running.last_step_of(sequence)
        ordered.num_tokens = count * self._block_size(target)
        self._own(ordered, self._pool(source), shared=False)
        return _send(ordered, there.kv)

    def _order(
        self,
        sequence: Sequence,
        ends: tuple[int, int],
        columns: tuple[list[int], list[int]],
        digests: Listing[bytes],
        first: int,
        now: float,
    ) -> OpenTransfer:
        self.num_ordered += 1
        ordered = OpenTransfer(
            self.num_ordered,
            sequence,
            *ends,
            *columns,
            list(digests[: len(columns[0])]),
            first,
            num_tokens=0,
            link=self.links.link(*ends),
            ahead=False,
            from_host=False,
            layered=False,
            began_s=now,
            source_pool=None,
            target_pool=None,
        )
        self.open[ordered.number] = ordered
        self._of.setdefault(sequence, []).append(ordered)
        return ordered

    def _own(self, transfer: OpenTransfer, source_pool: BlockPool, shared: bool) -> None:
        """Take a share of the blocks at both ends; `shared`: a slot has the targets already."""
        transfer.source_pool, transfer.target_pool = source_pool, self._pool(transfer.target)
        source_pool.share(transfer.blocks)
        if shared:
            transfer.target_pool.share(transfer.targets)
        self._coming(transfer.target).update(transfer.digests)

    # Ending

    def ended(
        self, instance: int, number: int, num_right: int, elapsed_s: float
    ) -> OpenTransfer | None:
        """Let go of the blocks of an end that is over. Returns the transfer if that is news."""
        transfer = self.open.get(number)
        if transfer is None:
            return None
        if instance == transfer.source and transfer.source_pool is not None:
            transfer.source_pool.let_go(transfer.blocks)
            transfer.source_pool = None
            if num_right:
                link = self.links.time(transfer.source, transfer.target)
                link.observe(len(transfer.blocks), elapsed_s)
        elif instance == transfer.target and transfer.target_pool is not None:
            if transfer.layered and transfer.num_right < 0 and self._is_computing(transfer):
                transfer.num_right = num_right
                self._early[transfer.source][number] = transfer
                return None
            self._land(transfer, transfer.target_pool, num_right)
        else:
            return None
        if transfer.over:
            self._close(transfer)
        return transfer

    def _close(self, transfer: OpenTransfer) -> None:
        del self.open[transfer.number]
        others = self._of[transfer.sequence]
        others.remove(transfer)
        if not others:
            del self._of[transfer.sequence]

    def _is_computing(self, transfer: OpenTransfer) -> bool:
        """Whether the step that computes a layered transfer has not answered, and may fail."""
        sequence = transfer.sequence
        if sequence.slot < 0 or sequence.instance != transfer.source:
            return False
        return self._instances[transfer.source].moving.answered_step < transfer.step

    def answered(self, instance: int) -> list[OpenTransfer]:
        """Land and return layered transfers that arrived before their steps answered, once these
        have.
        """
        early = self._early[instance]
        landed = []
        for transfer in [early[number] for number in sorted(early)]:
            if not self._is_computing(transfer):
                ended = self.ended(transfer.target, transfer.number, transfer.num_right, 0.0)
                landed += [ended] if ended is not None else []
        return landed

    def _land(self, transfer: OpenTransfer, pool: BlockPool, num_right: int) -> None:
        """Cache the right and full blocks, and let go of all."""
        whole = transfer.num_tokens // self._block_size(transfer.target)
        named = min(num_right, whole, len(transfer.digests))
        if self._instances[transfer.target].kv.caches_prefixes:
            pool.cache.register(transfer.digests[:named], transfer.targets[:named])
        self._forget_coming(transfer)
        pool.let_go(transfer.targets)
        transfer.target_pool = None
        self._early[transfer.source].pop(transfer.number, None)

    def lost(self, instance: int) -> None:
        """End the transfers of a worker that died at its ends."""
        self.links.lost(instance)
        for transfer in list(self.open.values()):
            if transfer.source == instance:
                transfer.source_pool = None
                if transfer.num_right >= 0 and transfer.target_pool is not None:
                    self._taint(transfer)  # it is unknown whether it was computed right
                    self._land(transfer, transfer.target_pool, 0)
            if transfer.target == instance:
                transfer.target_pool = None
                self._early[transfer.source].pop(transfer.number, None)
            if transfer.over:
                self._close(transfer)

    def over_link(self, event: LinkChanged) -> list[OpenTransfer]:
        """The transfers over a link whose end at the reporting instance is not over."""
        ends = (event.instance, event.peer) if event.sends else (event.peer, event.instance)
        return [
            transfer
            for transfer in self.open.values()
            if (transfer.source, transfer.target) == ends
            and transfer.link == event.link
            and (transfer.source_pool if event.sends else transfer.target_pool) is not None
        ]

    def taint(self, sequence: Sequence) -> None:
        """Have no blocks of a sequence cached anywhere."""
        for transfer in self.of(sequence):
            self._taint(transfer)

    def _taint(self, transfer: OpenTransfer) -> None:
        if transfer.target_pool is not None:  # else it has landed, and others may bring the same
            self._forget_coming(transfer)
        transfer.digests = []

    def _forget_coming(self, transfer: OpenTransfer) -> None:
        coming = self._coming(transfer.target)
        for digest in transfer.digests:
            if coming[digest] <= 1:
                del coming[digest]
            else:
                coming[digest] -= 1

    def _coming(self, instance: int) -> Counter[bytes]:
        return self._instances[instance].moving.remote_kvs.coming

    def _pool(self, instance: int) -> BlockPool:
        return self._instances[instance].kv.pool

    def _block_size(self, instance: int) -> int:
        return self._instances[instance].kv.block_size


def _send(transfer: OpenTransfer, kv: KVCache) -> Send:
    """The order of a transfer to an instance with the memory `kv`."""
    count, last = len(transfer.blocks), (transfer.num_tokens - 1) % kv.block_size + 1
    if not kv.holds_tokens:
        last = kv.block_size  # a state's pages are whole
    num_last = 1 if transfer.ahead else kv.num_groups
    return Send(
        transfer=transfer.number,
        source=transfer.source,
        target=transfer.target,
        blocks=int32(transfer.blocks),
        targets=int32(transfer.targets),
        num_tokens=(count - num_last) * kv.block_size + num_last * last,
        from_host=transfer.from_host,
        layered=transfer.layered,
        at_once=transfer.at_once,
        num_groups=num_last,
    )

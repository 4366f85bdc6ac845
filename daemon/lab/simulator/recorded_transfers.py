"""Transfers between instances that take their times from a journal, and its links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.lab.report.records import InstanceLog
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.pool import Pool


@dataclass(slots=True)
class JournalTransfer:
    """One transfer of a journal."""

    sent_s: float  # when the Core ordered it
    source: int
    target: int
    num_blocks: int
    num_tokens: int
    ends: list[TransferEnded] = field(default_factory=list)  # in order

    def is_like(self, order: Send) -> bool:
        """Whether an order is the one that was recorded."""
        return (self.source, self.target, self.num_blocks) == (
            order.source,
            order.target,
            order.blocks.size,
        )


@dataclass(slots=True)
class RecordedLinks:
    """The links of a journal: when each end was up or down, and all transfers by number."""

    changes: list[LinkChanged] = field(default_factory=list)
    transfers: dict[int, JournalTransfer] = field(default_factory=dict)


class RecordedTransfers:
    """All transfers of a rerun. One that the journal has ends as it did; another one takes the mean
    time of a block on its way, or two copies of it where no transfer was recorded.
    """

    def __init__(
        self,
        recorded: RecordedLinks,
        pools: Sequence[Pool],
        block_size: int,
        agenda: Agenda,
        logs: list[InstanceLog],
    ) -> None:
        self._recorded = recorded.transfers
        self._pools = pools
        self._block_size = block_size  # tokens
        self._agenda = agenda
        self._logs = logs
        self._block_s = _mean_block_s(recorded.transfers)
        self._open: dict[int, dict[int, TransferEnded]] = {}  # by transfer and instance
        self._orders: dict[int, Send] = {}
        for change in recorded.changes:
            agenda.add(change.now, Rank.LINK, change)

    # Workers. Their messages are the journal's; layers are part of its steps' times.

    def ready(self, now: float, instance: int) -> None:
        """A worker can compute; the journal says when its links are up."""

    def lost(self, now: float, instance: int) -> None:
        """A worker died, and answers no more; the journal says when other ends and links broke."""
        for number, ends in list(self._open.items()):
            ends.pop(instance, None)
            if not ends:
                del self._open[number]

    def layers_s(self, instance: int) -> float:
        """The additional time of its next plan for reporting each computed layer: none."""
        return 0.0

    def planned(self, now: float, instance: int, start_s: float, end_s: float) -> None:
        """A worker has its next plan."""

    # Orders

    def send(self, now: float, order: Send, computed_s: float) -> None:
        """Begin a transfer."""
        before = self._recorded.get(order.transfer)
        later_s = 0.0
        if before is not None and before.ends and before.is_like(order):
            ends, later_s = before.ends, now - before.sent_s
        else:
            end_s = max(now, computed_s) + self._expected_s(order)
            ends = [
                TransferEnded(end_s, end, order.transfer, order.blocks.size, end_s - now)
                for end in (order.target, order.source)
            ]
        self._orders[order.transfer] = order
        self._open[order.transfer] = {end.instance: end for end in ends}
        for end in ends:
            at_s = max(now, end.now + later_s)
            self._agenda.add(at_s, Rank.TRANSFERRED, (order.transfer, end.instance))

    def cancel(self, now: float, number: int) -> None:
        """Send no more of a transfer; one that the journal has ends as it did."""
        if number not in self._recorded:
            self._break(now, number)

    # Callbacks of the agenda

    def due(self, now: float, number: int) -> None:
        """A piece of a transfer may go: nothing is sent in pieces here."""

    def flowed(self, now: float, expected_s: float) -> None:
        """Some bytes have passed: nothing flows here."""

    def over(self, now: float, what: tuple[int, int]) -> TransferEnded | None:
        """An end's answer, unless it was given."""
        number, instance = what
        open_ends = self._open.get(number, {})
        ended = open_ends.pop(instance, None)
        if ended is None:
            return None
        if not open_ends:
            del self._open[number]
        if instance == self._orders[number].target:
            self._note(self._orders[number], ended)
        return TransferEnded(now, instance, number, ended.num_right, ended.elapsed_s)

    def changed(self, now: float, event: LinkChanged) -> LinkChanged | None:
        """An end's report that its link is up, or down once its open transfers were answered."""
        if event.is_up:
            return event
        way = (event.instance, event.peer) if event.sends else (event.peer, event.instance)
        left = [
            number
            for number, ends in self._open.items()
            if event.instance in ends and self._way_of(number) == way
        ]
        for number in left:
            self._break(now, number)
        if left:
            self._agenda.add(now, Rank.LINK, event)
        return None if left else event

    # Parts

    def _way_of(self, number: int) -> tuple[int, int]:
        return self._orders[number].source, self._orders[number].target

    def _break(self, now: float, number: int) -> None:
        """Have the open ends of a transfer answer now that nothing is right."""
        for instance, end in self._open.get(number, {}).items():
            broken = TransferEnded(now, instance, number, 0, end.elapsed_s)
            self._open[number][instance] = broken
            self._agenda.add(now, Rank.TRANSFERRED, (number, instance))

    def _expected_s(self, order: Send) -> float:
        here, there = self._pools[order.source], self._pools[order.target]
        unknown_s = here.copy_block_s + there.copy_block_s
        return order.blocks.size * self._block_s.get((order.source, order.target), unknown_s)

    def _note(self, order: Send, ended: TransferEnded) -> None:
        """Record a transfer that is over at its target."""
        block_bytes = self._pools[order.source].block_bytes
        log = self._logs[order.source]
        log.transfers += ended.num_right > 0
        num_tokens = min(order.num_tokens, ended.num_right * self._block_size)
        log.sent_bytes += block_bytes / self._block_size * num_tokens
        log.transfer_s += ended.elapsed_s


def _mean_block_s(
    transfers: Mapping[int, JournalTransfer],
) -> dict[tuple[int, int], float]:
    """The mean time of a block of whole transfers, by (source, target)."""
    times: dict[tuple[int, int], list[float]] = {}
    for transfer in transfers.values():
        whole = [end for end in transfer.ends if end.num_right == transfer.num_blocks]
        if whole and transfer.num_blocks:
            taken_s = whole[0].now - transfer.sent_s
            way = transfer.source, transfer.target
            times.setdefault(way, []).append(taken_s / transfer.num_blocks)
    return {way: fmean(each) for way, each in times.items()}

"""Transfers between simulated workers, and the links they take: as events of the agenda alone."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from daemon.core.actions import Send
from daemon.core.events import LinkChanged, TransferEnded
from daemon.lab.report.records import InstanceLog, Span
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.shared_links import NEVER, SharedLinks
from daemon.lab.simulator.ways import HandoffWay, Ways

MEETING_S = 0.05
"""From the moment that both workers are ready until a link between them is up."""


class NoLinkError(RuntimeError):
    """The Core sends where there is no link, or a number that was used before."""


@dataclass(slots=True)
class _Transfer:
    """One that an end has not answered yet."""

    sent: Send
    way: HandoffWay
    size_bytes: float
    told_s: float  # when the source heard of it; the target hears with the first byte
    # What is still to go: not before which time, and how many bytes.
    pieces: deque[tuple[float, float]] = field(default_factory=deque)
    began_s: float = NEVER
    passed_bytes: float = 0.0
    piece_bytes: float = 0.0  # of the piece that is under way
    open_ends: set[int] = field(default_factory=set)
    is_over: bool = False


class _LinkEnd(NamedTuple):
    """An end that is to say that it is up or down."""

    source: int
    target: int
    sends: bool  # of the two ends, the source's
    is_up: bool
    link: int
    lives: int = 0  # that the workers of both had had, when they were to meet


class SimulatedTransfers:
    """All of one simulation. A worker's second life knows nothing of what its first one sent."""

    def __init__(
        self,
        ways: Ways,
        agenda: Agenda,
        logs: list[InstanceLog],
        spans: list[Span] | None = None,
    ) -> None:
        """`logs` get what each instance sends, and `spans`, if there is a list, each transfer."""
        self._ways = ways
        self._agenda = agenda
        self._logs = logs
        self._spans = spans
        self._links = SharedLinks(ways.bytes_per_s())
        self._open: dict[int, _Transfer] = {}
        self._layered: defaultdict[int, list[int]] = defaultdict(list)  # await a source's next plan
        self._ready: list[int] = []
        self._lives = [0] * len(ways)
        # The number of each end's link that is up, by (who says so, the other, whether it sends).
        self._up: dict[tuple[int, int, bool], int] = {}
        self._num_links = 0
        self._next_s = NEVER
        self._newest = -1

    # Workers

    def ready(self, now: float, instance: int) -> None:
        """A worker can compute: it and every other one that can meet."""
        for peer in self._ready:
            lives = self._lives[instance], self._lives[peer]
            for source, target in ((instance, peer), (peer, instance)):
                if self._ways.between(source, target) is not None:
                    for end in (False, True):
                        what = _LinkEnd(
                            source=source,
                            target=target,
                            sends=end,
                            is_up=True,
                            link=self._num_links,
                            lives=sum(lives),
                        )
                        self._agenda.add(now + MEETING_S, Rank.LINK, what)
                    self._num_links += 1
        self._ready.append(instance)

    def lost(self, now: float, instance: int) -> None:
        """A worker died: the other ends of its transfers answer, then say that links are down."""
        self._lives[instance] += 1
        if instance in self._ready:
            self._ready.remove(instance)
        self._layered.pop(instance, None)
        for number, one in list(self._open.items()):
            if instance in (one.sent.source, one.sent.target):
                self._break(now, number, one)
                one.open_ends.discard(instance)
                self._answer(now, number, one, 0)
        for who, peer, sends in sorted(self._up):
            if who == instance:
                del self._up[who, peer, sends]
            elif peer == instance:
                source, target = (who, peer) if sends else (peer, who)
                link = self._up[who, peer, sends]
                self._agenda.add(now, Rank.LINK, _LinkEnd(source, target, sends, False, link))

    # Orders

    def send(self, now: float, order: Send, computed_s: float) -> None:
        """Begin a transfer once the plans before are computed, which is at `computed_s`; one that
        goes layer by layer with the next plan. Raises NoLinkError.
        """
        source, target, number = order.source, order.target, order.transfer
        way = self._ways.between(source, target, order.from_host)
        ends = (source, target, True), (target, source, False)
        if way is None or not self._up.keys() >= set(ends) or number <= self._newest:
            raise NoLinkError(f"transfer {number} from {source} to {target}: there is no link")
        self._newest = number
        block_bytes, num_blocks = self._ways.block_bytes(source), order.blocks.size
        # A pool's blocks all have as many tokens; the last of these may be filled in part.
        block_tokens = self._ways.block_size
        size_bytes = block_bytes * min(num_blocks, order.num_tokens / block_tokens)
        one = _Transfer(order, way, size_bytes, now, open_ends={source, target})
        self._open[number] = one
        if order.layered:
            self._layered[source].append(number)
        else:
            one.pieces.append((max(now, computed_s), size_bytes))
            self._go_on(now, number, one)

    def layers_s(self, instance: int) -> float:
        """How much longer its next plan takes, because it tells of each layer that is computed."""
        if not self._layered.get(instance):
            return 0.0
        return self._ways.num_layers(instance) * self._ways.spec.layer_sync_s

    def planned(self, now: float, instance: int, start_s: float, end_s: float) -> None:
        """A worker has its next plan, and will compute it from `start_s` to `end_s`.

        Each layer goes once it is computed and the ones before it are gone. So the first is ready
        after its share of the step, and the last one goes when all is computed, at the earliest.
        """
        share = 1.0 / self._ways.num_layers(instance)
        for number in self._layered.pop(instance, ()):
            one = self._open.get(number)
            if one is not None and not one.is_over:
                first_s = start_s + share * (end_s - start_s)
                one.pieces.append((first_s, one.size_bytes * (1.0 - share)))
                one.pieces.append((end_s, one.size_bytes * share))
                self._go_on(now, number, one)

    def cancel(self, now: float, number: int) -> None:
        """Send nothing more of a transfer; what is whole by now is right."""
        one = self._open.get(number)
        if one is None or one.is_over:
            return
        self._break(now, number, one)
        # Layer by layer no block is whole before all are.
        block_bytes = self._ways.block_bytes(one.sent.source)
        num_whole = 0 if one.sent.layered else int(one.passed_bytes // block_bytes)
        self._answer(now + one.way.latency_s, number, one, num_whole)

    # What the agenda calls back

    def due(self, now: float, number: int) -> None:
        """A piece of a transfer may go from now on."""
        one = self._open.get(number)
        if one is not None and not one.is_over:
            self._go_on(now, number, one)

    def flowed(self, now: float, expected_s: float) -> None:
        """Some bytes have passed, unless that came to be another time."""
        if expected_s != self._next_s:
            return
        self._next_s = NEVER
        for number in self._links.passed(now):
            one = self._open[number]
            one.passed_bytes += one.piece_bytes
            one.piece_bytes = 0.0
            self._go_on(now, number, one)
        self._look_ahead()

    def over(self, now: float, what: tuple[int, int, int]) -> TransferEnded | None:
        """An end's answer, unless it was given or the worker is dead."""
        number, instance, num_right = what
        one = self._open.get(number)
        if one is None or instance not in one.open_ends:
            return None
        one.open_ends.discard(instance)
        if not one.open_ends:
            del self._open[number]
        heard_s = one.told_s if instance == one.sent.source else min(now, one.began_s)
        return TransferEnded(now, instance, number, num_right, now - heard_s)

    def changed(self, now: float, end: _LinkEnd) -> LinkChanged | None:
        """An end of a link says that it is up or down, if it still is so."""
        sends = end.sends
        who, peer = (end.source, end.target) if sends else (end.target, end.source)
        mine = who, peer, sends
        if end.is_up and self._lives[who] + self._lives[peer] == end.lives:
            self._up[mine] = end.link
        elif not end.is_up and self._up.get(mine) == end.link:
            del self._up[mine]
        else:
            return None
        return LinkChanged(
            now=now, instance=who, peer=peer, sends=sends, is_up=end.is_up, link=end.link
        )

    # Parts

    def _go_on(self, now: float, number: int, one: _Transfer) -> None:
        """Send the next piece if its time has come; answer when there is none."""
        if not one.pieces:
            one.is_over = True
            self._note(now, one)
            self._answer(now + one.way.latency_s, number, one, one.sent.blocks.size)
        elif one.pieces[0][0] > now:
            self._agenda.add(one.pieces[0][0], Rank.SEND, number)
        else:
            _, one.piece_bytes = one.pieces.popleft()
            one.began_s = min(one.began_s, now)
            self._links.begin(now, number, one.way.links, one.piece_bytes)
            self._look_ahead()

    def _break(self, now: float, number: int, one: _Transfer) -> None:
        """Nothing more of it goes."""
        if one.is_over:
            return
        one.is_over = True
        one.passed_bytes += one.piece_bytes - self._links.stop(now, number)
        one.pieces.clear()
        self._note(now, one)
        self._look_ahead()

    def _answer(self, at_s: float, number: int, one: _Transfer, num_right: int) -> None:
        """Both ends answer, as far as they have not; the one that takes blocks in comes first."""
        whole = one.sent.blocks.size
        for end in (one.sent.target, one.sent.source):
            if end in one.open_ends:
                said = num_right if end == one.sent.target or num_right == whole else 0
                self._agenda.add(at_s, Rank.TRANSFERRED, (number, end, said))
        if not one.open_ends:
            del self._open[number]

    def _look_ahead(self) -> None:
        """Note when the next bytes will have passed, if that is news."""
        next_s = self._links.next_s
        if next_s != self._next_s:
            self._next_s = next_s
            if next_s < NEVER:
                self._agenda.add(next_s, Rank.FLOWED, next_s)

    def _note(self, now: float, one: _Transfer) -> None:
        """Write down what a transfer that is over came to."""
        if one.began_s > now:
            return
        taken_s = now - one.began_s
        log = self._logs[one.sent.source]
        log.transfers += 1
        log.sent_bytes += one.passed_bytes
        log.transfer_s += taken_s
        if self._spans is not None:
            names = self._ways.name(one.sent.source), self._ways.name(one.sent.target)
            detail: dict[str, float | int | str] = {
                "blocks": one.sent.blocks.size,
                "bytes": one.passed_bytes,
            }
            self._spans.append(Span(" to ".join(names), "handoff", one.began_s, taken_s, detail))

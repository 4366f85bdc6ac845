"""Transfers between simulated workers, and their links: as events of the agenda alone."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.lab.report.records import InstanceLog, Span
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.routes import Routes, TransferRoute
from daemon.lab.simulator.shared_links import NEVER, SharedLinks

MEETING_S = 0.05
"""Time from the moment that both workers are ready until a link between them is up."""


class NoLinkError(RuntimeError):
    """The Core orders a transfer where there is no link, or repeats a number."""


@dataclass(slots=True)
class _Transfer:
    """A transfer that an end has not answered yet."""

    sent: Send
    route: TransferRoute
    size_bytes: float
    ordered_s: float  # at the source; the target learns of it with the first byte
    # The remaining pieces: the earliest time of each, and its bytes.
    pieces: deque[tuple[float, float]] = field(default_factory=deque)
    began_s: float = NEVER
    passed_bytes: float = 0.0
    piece_bytes: float = 0.0  # of the piece that is under way
    open_ends: set[int] = field(default_factory=set)
    is_over: bool = False


class _LinkEnd(NamedTuple):
    """An end that will report that it is up or down."""

    source: int
    target: int
    sends: bool  # of the two ends, the source's
    is_up: bool
    link: int
    lives: int = 0  # of both workers' processes, when they were to connect


class SimulatedTransfers:
    """All transfers of a simulation. A worker's second process knows no transfers of the first."""

    def __init__(
        self,
        routes: Routes,
        agenda: Agenda,
        logs: list[InstanceLog],
        spans: list[Span] | None = None,
    ) -> None:
        """`logs` receive each instance's transfers, and so does `spans`, if there is a list."""
        self._routes = routes
        self._agenda = agenda
        self._logs = logs
        self._spans = spans
        self._links = SharedLinks(routes.bytes_per_s())
        self._open: dict[int, _Transfer] = {}
        self._layered: defaultdict[int, list[int]] = defaultdict(list)  # await a source's next plan
        self._ready: list[int] = []
        self._lives = [0] * len(routes)
        # The number of each link end that is up, by (its instance, its peer, whether it sends).
        self._up: dict[tuple[int, int, bool], int] = {}
        self._num_links = 0
        self._next_s = NEVER
        self._newest = -1

    # Workers

    def ready(self, now: float, instance: int) -> None:
        """A worker can compute: connect it to every other one."""
        for peer in self._ready:
            lives = self._lives[instance], self._lives[peer]
            for source, target in ((instance, peer), (peer, instance)):
                if self._routes.between(source, target) is not None:
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
        """A worker died: the other ends of its transfers answer, then report that links
        are down.
        """
        self._lives[instance] += 1
        if instance in self._ready:
            self._ready.remove(instance)
        self._layered.pop(instance, None)
        for number, transfer in list(self._open.items()):
            if instance in (transfer.sent.source, transfer.sent.target):
                self._break(now, number, transfer)
                transfer.open_ends.discard(instance)
                self._answer(now, number, transfer, 0)
        for reporter, peer, sends in sorted(self._up):
            if reporter == instance:
                del self._up[reporter, peer, sends]
            elif peer == instance:
                source, target = (reporter, peer) if sends else (peer, reporter)
                link = self._up[reporter, peer, sends]
                self._agenda.add(now, Rank.LINK, _LinkEnd(source, target, sends, False, link))

    # Orders

    def send(self, now: float, order: Send, computed_s: float) -> None:
        """Begin a transfer once the plans before it are computed, at `computed_s`; a layered one
        goes layer by layer with the next plan. Raises NoLinkError.
        """
        source, target, number = order.source, order.target, order.transfer
        route = self._routes.between(source, target, order.from_host)
        ends = (source, target, True), (target, source, False)
        if route is None or not self._up.keys() >= set(ends) or number <= self._newest:
            raise NoLinkError(f"transfer {number} from {source} to {target}: there is no link")
        self._newest = number
        block_bytes, num_blocks = self._routes.block_bytes(source), order.blocks.size
        # A pool's blocks all have as many tokens; the last of these may be filled in part.
        block_tokens = self._routes.block_size
        size_bytes = block_bytes * min(num_blocks, order.num_tokens / block_tokens)
        transfer = _Transfer(order, route, size_bytes, now, open_ends={source, target})
        self._open[number] = transfer
        if order.layered:
            self._layered[source].append(number)
        else:
            transfer.pieces.append((max(now, computed_s), size_bytes))
            self._go_on(now, number, transfer)

    def layers_s(self, instance: int) -> float:
        """The additional time of its next plan for reporting each computed layer."""
        if not self._layered.get(instance):
            return 0.0
        return self._routes.num_layers(instance) * self._routes.spec.layer_sync_s

    def planned(self, now: float, instance: int, start_s: float, end_s: float) -> None:
        """A worker has its next plan, and will compute it from `start_s` to `end_s`.

        Each layer goes once it is computed and the ones before it have gone. So the first is ready
        after its share of the step, and the last one goes when all is computed, at the earliest.
        """
        share = 1.0 / self._routes.num_layers(instance)
        for number in self._layered.pop(instance, ()):
            transfer = self._open.get(number)
            if transfer is not None and not transfer.is_over:
                first_s = start_s + share * (end_s - start_s)
                transfer.pieces.append((first_s, transfer.size_bytes * (1.0 - share)))
                transfer.pieces.append((end_s, transfer.size_bytes * share))
                self._go_on(now, number, transfer)

    def cancel(self, now: float, number: int) -> None:
        """Send no more of a transfer; its whole blocks so far count as right."""
        transfer = self._open.get(number)
        if transfer is None or transfer.is_over:
            return
        self._break(now, number, transfer)
        # Layer by layer no block is whole before all are.
        block_bytes = self._routes.block_bytes(transfer.sent.source)
        num_whole = 0 if transfer.sent.layered else int(transfer.passed_bytes // block_bytes)
        self._answer(now + transfer.route.latency_s, number, transfer, num_whole)

    # Callbacks of the agenda

    def due(self, now: float, number: int) -> None:
        """A piece of a transfer may go from now on."""
        transfer = self._open.get(number)
        if transfer is not None and not transfer.is_over:
            self._go_on(now, number, transfer)

    def flowed(self, now: float, expected_s: float) -> None:
        """Some bytes have passed, unless the expected time has changed."""
        if expected_s != self._next_s:
            return
        self._next_s = NEVER
        for number in self._links.passed(now):
            transfer = self._open[number]
            transfer.passed_bytes += transfer.piece_bytes
            transfer.piece_bytes = 0.0
            self._go_on(now, number, transfer)
        self._look_ahead()

    def over(self, now: float, what: tuple[int, int, int]) -> TransferEnded | None:
        """An end's answer, unless it was given or the worker is dead."""
        number, instance, num_right = what
        transfer = self._open.get(number)
        if transfer is None or instance not in transfer.open_ends:
            return None
        transfer.open_ends.discard(instance)
        if not transfer.open_ends:
            del self._open[number]
        heard_s = (
            transfer.ordered_s if instance == transfer.sent.source else min(now, transfer.began_s)
        )
        return TransferEnded(now, instance, number, num_right, now - heard_s)

    def changed(self, now: float, end: _LinkEnd) -> LinkChanged | None:
        """An end's report that its link is up or down, if that still holds."""
        sends = end.sends
        instance, peer = (end.source, end.target) if sends else (end.target, end.source)
        mine = instance, peer, sends
        if end.is_up and self._lives[instance] + self._lives[peer] == end.lives:
            self._up[mine] = end.link
        elif not end.is_up and self._up.get(mine) == end.link:
            del self._up[mine]
        else:
            return None
        return LinkChanged(
            now=now, instance=instance, peer=peer, sends=sends, is_up=end.is_up, link=end.link
        )

    # Parts

    def _go_on(self, now: float, number: int, transfer: _Transfer) -> None:
        """Send the next piece if its time has come; answer when there is none."""
        if not transfer.pieces:
            transfer.is_over = True
            self._note(now, transfer)
            self._answer(
                now + transfer.route.latency_s, number, transfer, transfer.sent.blocks.size
            )
        elif transfer.pieces[0][0] > now:
            self._agenda.add(transfer.pieces[0][0], Rank.SEND, number)
        else:
            _, transfer.piece_bytes = transfer.pieces.popleft()
            transfer.began_s = min(transfer.began_s, now)
            self._links.begin(now, number, transfer.route.links, transfer.piece_bytes)
            self._look_ahead()

    def _break(self, now: float, number: int, transfer: _Transfer) -> None:
        """Stop a transfer."""
        if transfer.is_over:
            return
        transfer.is_over = True
        transfer.passed_bytes += transfer.piece_bytes - self._links.stop(now, number)
        transfer.pieces.clear()
        self._note(now, transfer)
        self._look_ahead()

    def _answer(self, at_s: float, number: int, transfer: _Transfer, num_right: int) -> None:
        """Have both ends answer that have not; the target's answer comes first."""
        whole = transfer.sent.blocks.size
        for end in (transfer.sent.target, transfer.sent.source):
            if end in transfer.open_ends:
                said = num_right if end == transfer.sent.target or num_right == whole else 0
                self._agenda.add(at_s, Rank.TRANSFERRED, (number, end, said))
        if not transfer.open_ends:
            del self._open[number]

    def _look_ahead(self) -> None:
        """Note the time at which the next bytes will have passed, if it has changed."""
        next_s = self._links.next_s
        if next_s != self._next_s:
            self._next_s = next_s
            if next_s < NEVER:
                self._agenda.add(next_s, Rank.FLOWED, next_s)

    def _note(self, now: float, transfer: _Transfer) -> None:
        """Record a transfer that is over."""
        if transfer.began_s > now:
            return
        taken_s = now - transfer.began_s
        log = self._logs[transfer.sent.source]
        log.transfers += 1
        log.sent_bytes += transfer.passed_bytes
        log.transfer_s += taken_s
        if self._spans is not None:
            names = self._routes.name(transfer.sent.source), self._routes.name(transfer.sent.target)
            detail: dict[str, float | int | str] = {
                "blocks": transfer.sent.blocks.size,
                "bytes": transfer.passed_bytes,
            }
            self._spans.append(
                Span(" to ".join(names), "handoff", transfer.began_s, taken_s, detail)
            )

"""Migrations between the instances of a Driver: links, transfers, and orders."""

from daemon.core.core import Core
from daemon.core.values.actions import Action, Send
from daemon.core.values.events import (
    Event,
    FlipOrdered,
    InstanceDrained,
    InstanceResumed,
    LinkChanged,
    MigrationOrdered,
    TransferEnded,
)
from daemon.state.role import Role
from tests.core.model_link import Sending
from tests.core.model_worker import ModelWorker


class Movers:
    """The part of a Driver that links its workers."""

    core: Core
    now: float
    workers: dict[int, ModelWorker]

    def __init__(self) -> None:
        self.sendings: dict[int, Sending] = {}  # not over at both ends
        self.numbers: set[int] = set()  # of all transfers that there ever were
        self.links: dict[tuple[int, int], int] = {}  # numbers by (source, target), both ends up
        self.num_links = 0
        self.falling: list[tuple[int, int, int, int]] = []  # ends that a death will break
        self.layered: list[Send] = []  # of the action list that is carried out

    def handle(self, event: Event) -> list[Action]:
        raise NotImplementedError

    def link_all(self) -> None:
        """Every two workers that live can send to each other."""
        self.fall()
        living = sorted(self.workers)
        for source in living:
            for target in living:
                if source != target and (source, target) not in self.links:
                    link = self.links[source, target] = self.num_links
                    self.num_links += 1
                    self.handle(LinkChanged(self.now, target, source, False, True, link))
                    self.handle(LinkChanged(self.now, source, target, True, True, link))

    def break_link(self, source: int, target: int, end: int, link: int) -> None:
        """One end of a link says that it is down, having answered its transfers first."""
        way = source, target
        for number in [n for n, one in self.sendings.items() if (one.way, one.link) == (way, link)]:
            self.land(number, end, 0)
        for one in self.sendings.values():
            if (one.way, one.link) == (way, link):  # ordered as it broke: that end never hears
                one.ends -= {end}
        self.clear_sendings()
        peer = target if end == source else source
        self.handle(LinkChanged(self.now, end, peer, end == source, False, link))

    def fall(self) -> bool:
        """Links to those that died break at their other ends too; whether there were any."""
        falling, self.falling = self.falling, []
        for one in falling:
            self.break_link(*one)
        return bool(falling)

    def land(self, number: int, end: int, num_right: int = 1 << 30) -> bool:
        """End a transfer at one end, with `blocks` of it right; whether it was open."""
        sending = self.sendings.get(number)
        if sending is None or end not in sending.ends:
            return False
        sending.ends -= {end}
        if end == sending.way[0]:
            sending.check_source()
            num_right = min(num_right, len(sending.blocks))
        else:
            num_right = sending.land(num_right)
        self.clear_sendings()
        self.handle(TransferEnded(self.now, end, number, num_right, 1e-4))
        return True

    def land_all(self) -> bool:
        """All that is on its way arrives; whether anything was."""
        flying = [(number, end) for number, one in self.sendings.items() for end in one.ends]
        landed = [self.land(number, end) for number, end in flying]
        return any(landed)

    def clear_sendings(self) -> None:
        self.sendings = {number: one for number, one in self.sendings.items() if one.ends}

    def move(self, sequence: int, instance: int) -> None:
        self.handle(MigrationOrdered(self.now, sequence, instance))

    def flip(self, instance: int, role: Role) -> None:
        self.handle(FlipOrdered(self.now, instance, role))

    def drain_one(self, instance: int) -> None:
        self.handle(InstanceDrained(self.now, instance))

    def resume_one(self, instance: int) -> None:
        self.handle(InstanceResumed(self.now, instance))

    def check_transfers(self) -> None:
        """The Core waits for the ends that are open, and for no others."""
        waits = {
            (one.number, end)
            for one in self.core.migrator.transfers
            for end, pool in ((one.source, one.source_pool), (one.target, one.target_pool))
            if pool is not None and not (end == one.target and one.num_right >= 0)
        }
        assert waits == {(n, end) for n, one in self.sendings.items() for end in one.ends}

    def send(self, action: Send) -> None:
        ends = self.workers[action.source], self.workers[action.target]
        link = self.core.migrator.transfers.links.link(action.source, action.target)
        self.sendings[action.transfer] = Sending(action, *ends, link)

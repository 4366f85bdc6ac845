"""Transfers between simulated workers, ordered by hand; every time against what a hand can reckon.

Two instances of the tiny model: blocks of 2,048 bytes with 16 tokens, two layers, and links that
carry 2,048,000 bytes a second: a millisecond a block.
"""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.values.actions import Send
from daemon.core.values.events import LinkChanged, TransferEnded
from daemon.cost.profile import LinkSpec, Profile
from daemon.lab.report.records import InstanceLog, Span
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.routes import Routes
from daemon.lab.simulator.scenario import HandoffSpec
from daemon.lab.simulator.transfers import MEETING_S, NoLinkError, SimulatedTransfers
from tests.lab.simulator.made import DEVICE, phases, profile

BLOCK_BYTES = 2048
BLOCK_S = 0.001
SYNC_S = 0.01
SPEC = HandoffSpec(bytes_per_s=BLOCK_BYTES / BLOCK_S, latency_s=0.0, layer_sync_s=SYNC_S)


NO_LINK = LinkSpec(0.0)


def made(link: LinkSpec = NO_LINK, host: LinkSpec = NO_LINK, tp: int = 1) -> Profile:
    device = msgspec.structs.replace(DEVICE, peer_link=link, host_link=host)
    return profile(phases((0.01, 0.0, 0.0)), device=device, tp=tp)


def ways_of(
    *profiles: Profile, spec: HandoffSpec | None = None, sizes: tuple[int, ...] = ()
) -> Routes:
    sizes = sizes or (BLOCK_BYTES,) * len(profiles)
    pools = [Pool(100, size) for size in sizes]
    return Routes([f"i{number}" for number in range(len(profiles))], profiles, pools, 16, spec)


def order(transfer: int, num_blocks: int, **changes: Any) -> Send:
    blocks = np.arange(num_blocks, dtype=np.int32)
    fields = {"source": 0, "target": 1, "num_tokens": 16 * num_blocks, **changes}
    return Send(transfer, blocks=blocks, targets=blocks + 50, **fields)


class Driver:
    """What a simulator does with the agenda's entries, and the events that come of it."""

    def __init__(self, num: int = 2, spec: HandoffSpec = SPEC) -> None:
        self.agenda = Agenda()
        self.logs = [InstanceLog(f"i{number}") for number in range(num)]
        self.spans: list[Span] = []
        ways = ways_of(*[made()] * num, spec=spec)
        self.transfers = SimulatedTransfers(ways, self.agenda, self.logs, self.spans)
        self.told: list[LinkChanged | TransferEnded] = []
        self.now = 0.0
        for instance in range(num):
            self.transfers.ready(0.0, instance)
        self.until(1.0)
        self.told_first, self.told = self.told, []

    def until(self, time_s: float) -> "Driver":
        """Let all happen that happens until then."""
        transfers = self.transfers
        handlers: dict[int, Any] = {
            Rank.FLOWED: transfers.flowed,
            Rank.SEND: transfers.due,
            Rank.TRANSFERRED: transfers.over,
            Rank.LINK: transfers.changed,
        }
        self.agenda.add(time_s, Rank.WAKE, None)
        while True:
            now, rank, what = self.agenda.pop()
            assert now >= self.now
            self.now = now
            if rank == Rank.WAKE:
                return self
            event = handlers[rank](now, what)
            if event is not None:
                self.told.append(event)

    def ended(self) -> dict[tuple[int, int], tuple[float, int]]:
        """When each end answered each transfer, and how many blocks it says are right."""
        answers = [event for event in self.told if isinstance(event, TransferEnded)]
        by_end = {(one.transfer, one.instance): (one.now, one.num_right) for one in answers}
        assert len(by_end) == len(answers), "each end answers once"
        return by_end


def ends_at(driver: Driver, transfer: int = 0) -> list[float]:
    """When its source and its target answered, all of it right."""
    answers = [driver.ended()[transfer, end] for end in (0, 1)]
    return [now for now, _ in answers]


# Links


def test_links_come_up_at_both_ends_of_both_directions() -> None:
    first = Driver().told_first
    assert {(e.now, e.instance, e.peer, e.sends, e.is_up) for e in first} == {  # type: ignore[union-attr]
        (MEETING_S, who, 1 - who, sends, True) for who in (0, 1) for sends in (True, False)
    }
    number = {(e.instance, e.sends): e.link for e in first}  # type: ignore[union-attr]
    assert number[0, True] == number[1, False] != number[1, True] == number[0, False]


def test_nothing_is_sent_where_there_is_no_link_and_no_number_twice() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(7, 1), 1.0)
    for wrong in (order(7, 1), order(8, 1, target=0)):
        with pytest.raises(NoLinkError):
            driver.transfers.send(1.0, wrong, 1.0)
    driver.transfers.lost(1.0, 1)
    with pytest.raises(NoLinkError):
        driver.transfers.send(1.0, order(9, 1), 1.0)


# Serialized


def test_a_transfer_begins_when_the_plans_before_are_computed() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 1.5)
    assert ends_at(driver.until(3.0)) == pytest.approx([1.51, 1.51])
    elapsed = {e.instance: e.elapsed_s for e in driver.told if isinstance(e, TransferEnded)}
    assert elapsed == pytest.approx({0: 0.51, 1: 0.01}), "the target hears with the first byte"
    assert (driver.logs[0].transfers, driver.logs[1].transfers) == (1, 0)
    assert driver.logs[0].sent_bytes == pytest.approx(10 * BLOCK_BYTES)
    assert driver.logs[0].transfer_s == pytest.approx(0.01)
    assert [(one.track, one.start_s) for one in driver.spans] == [("i0 to i1", 1.5)]


def test_a_block_that_is_filled_in_part_sends_that_part() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 3, num_tokens=40), 1.0)
    assert ends_at(driver.until(3.0)) == pytest.approx([1.0025, 1.0025])
    assert driver.logs[0].sent_bytes == pytest.approx(2.5 * BLOCK_BYTES)


def test_the_latency_comes_on_top_and_holds_up_nobody() -> None:
    driver = Driver(spec=msgspec.structs.replace(SPEC, latency_s=0.1))
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.transfers.send(1.0, order(1, 10), 1.01)
    driver.until(3.0)
    assert ends_at(driver) == pytest.approx([1.11, 1.11])
    assert ends_at(driver, 1) == pytest.approx([1.12, 1.12])


def test_two_transfers_out_of_one_instance_share_its_link() -> None:
    driver = Driver(3)
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.transfers.send(1.0, order(1, 10, target=2), 1.005)
    # Five blocks alone; then both have half: ten more milliseconds, and five blocks are left.
    assert ends_at(driver.until(3.0)) == pytest.approx([1.015, 1.015])
    assert driver.ended()[1, 2][0] == pytest.approx(1.02)


def test_a_transfer_of_later_never_holds_up_one_of_earlier() -> None:
    """It is ordered first, and its time to go comes last."""
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 2.0)
    driver.transfers.send(1.0, order(1, 10), 1.0)
    driver.until(3.0)
    assert ends_at(driver, 1) == pytest.approx([1.01, 1.01])
    assert ends_at(driver, 0) == pytest.approx([2.01, 2.01])


def test_both_directions_are_links_of_their_own() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.transfers.send(1.0, order(1, 10, source=1, target=0), 1.0)
    driver.until(3.0)
    assert [now for now, _ in driver.ended().values()] == pytest.approx([1.01] * 4)


# Layer by layer


@given(st.integers(1, 60), st.floats(0.0, 0.1), st.floats(1e-4, 0.1))
@settings(derandomize=True, deadline=None)
def test_layers_go_as_the_step_computes_them(
    num_blocks: int, before_s: float, step_s: float
) -> None:
    """Each of two layers goes when it is computed and the one before is gone."""
    driver = Driver()
    start_s, end_s = 1.0 + before_s, 1.0 + before_s + step_s
    driver.transfers.send(1.0, order(0, num_blocks, layered=True), 1.0)
    assert driver.transfers.layers_s(0) == pytest.approx(2 * SYNC_S)
    assert driver.transfers.layers_s(1) == 0.0
    driver.transfers.planned(1.0, 0, start_s, end_s)
    assert driver.transfers.layers_s(0) == 0.0, "of that step alone"
    copy_s = BLOCK_S * num_blocks / 2
    gone_s = start_s
    for computed in (1, 2):
        gone_s = max(gone_s, start_s + step_s * computed / 2) + copy_s
    assert ends_at(driver.until(3.0)) == pytest.approx([gone_s, gone_s])


def test_layers_of_two_transfers_share_the_link_and_one_step() -> None:
    driver = Driver(3)
    for number, target in ((0, 1), (1, 2)):
        driver.transfers.send(1.0, order(number, 10, target=target, layered=True), 1.0)
    assert driver.transfers.layers_s(0) == pytest.approx(2 * SYNC_S)
    driver.transfers.planned(1.0, 0, 1.0, 1.1)
    # The second layer of each, five blocks' time, goes when the step is over, at half the speed.
    assert ends_at(driver.until(3.0)) == pytest.approx([1.11, 1.11])


# Broken off


def test_a_cancelled_transfer_keeps_the_blocks_that_are_whole() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.until(1.0045)
    driver.transfers.cancel(driver.now, 0)
    driver.transfers.cancel(driver.now, 0)
    driver.until(3.0)
    assert driver.ended() == {(0, 0): (1.0045, 0), (0, 1): (1.0045, 4)}
    assert driver.logs[0].sent_bytes == pytest.approx(4.5 * BLOCK_BYTES)


def test_what_is_cancelled_before_it_begins_is_answered_too() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 1.5)
    driver.transfers.send(1.0, order(1, 10, layered=True), 1.5)
    driver.transfers.cancel(1.0, 0)
    driver.transfers.cancel(1.0, 1)
    driver.transfers.planned(1.2, 0, 1.5, 1.6)
    driver.until(3.0)
    assert driver.ended() == {(n, end): (1.0, 0) for n in (0, 1) for end in (0, 1)}
    assert driver.logs[0].sent_bytes == driver.logs[0].transfers == 0


def test_a_transfer_that_is_over_is_not_cancelled_any_more() -> None:
    driver = Driver(spec=msgspec.structs.replace(SPEC, latency_s=0.1))
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.until(1.05)
    driver.transfers.cancel(1.05, 0)
    assert ends_at(driver.until(3.0)) == pytest.approx([1.11, 1.11])
    assert driver.ended()[0, 1][1] == 10


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("at_s", [1.0, 1.004, 1.05], ids=["waits", "goes", "has its last byte"])
def test_the_other_end_of_a_dead_worker_answers_and_then_has_no_link(
    dead: int, at_s: float
) -> None:
    driver = Driver(3, spec=msgspec.structs.replace(SPEC, latency_s=0.1))
    driver.transfers.send(1.0, order(0, 10), 1.002)
    driver.until(at_s)
    driver.transfers.lost(at_s, dead)
    driver.until(2.0)
    assert [(e.now, e.instance) for e in driver.told if isinstance(e, TransferEnded)] == [
        (at_s, 1 - dead)
    ]
    assert isinstance(driver.told[0], TransferEnded) and driver.told[0].num_right == 0
    down = [event for event in driver.told[1:] if isinstance(event, LinkChanged)]
    assert {(e.now, e.instance, e.peer, e.sends, e.is_up) for e in down} == {
        (at_s, other, dead, sends, False) for other in {0, 1, 2} - {dead} for sends in (True, False)
    }
    driver.told.clear()
    driver.transfers.ready(2.0, dead)
    driver.until(3.0)
    up = [event for event in driver.told if isinstance(event, LinkChanged)]
    assert len(driver.told) == len(up) == 8, "both ends of both directions, with each other one"
    assert {(e.now, e.is_up) for e in up} == {(2.0 + MEETING_S, True)}
    assert not {e.link for e in up} & {e.link for e in down}, "a link that opens anew is another"
    driver.transfers.send(3.0, order(1, 10), 3.0)
    assert ends_at(driver.until(4.0), 1) == pytest.approx([3.11, 3.11])


def test_a_worker_that_dies_before_the_ends_have_met_has_no_link() -> None:
    driver = Driver()
    driver.transfers.lost(1.0, 1)
    driver.transfers.ready(1.1, 1)
    driver.transfers.lost(1.1 + MEETING_S / 2, 1)
    driver.told.clear()
    driver.until(2.0)
    assert not [e for e in driver.told if isinstance(e, LinkChanged) and e.is_up]


def test_workers_that_die_together_say_nothing() -> None:
    driver = Driver()
    driver.transfers.send(1.0, order(0, 10), 1.0)
    driver.transfers.lost(1.004, 0)
    driver.transfers.lost(1.004, 1)
    driver.now = 1.004
    driver.until(2.0)
    assert driver.told == []


# Routes


def test_devices_with_a_direct_way_take_it() -> None:
    one, host = LinkSpec(100.0, 0.25), LinkSpec(10.0, 0.5)
    ways = ways_of(made(one, host, tp=2), made(one, host))
    way = ways.between(0, 1)
    assert way is not None and way.links == ("i0 link out", "i1 link in")
    assert way.latency_s == 0.25
    speeds = ways.bytes_per_s()
    assert (speeds["i0 link out"], speeds["i1 link in"]) == (200.0, 100.0), "a link a device"


def test_others_take_the_host_links_of_both() -> None:
    ways = ways_of(made(host=LinkSpec(10.0, 0.5)), made(LinkSpec(100.0), LinkSpec(20.0, 0.25)))
    way = ways.between(0, 1)
    assert way is not None and way.links == ("i0 host link out", "i1 host link in")
    assert way.latency_s == 0.75


def test_what_lies_in_host_memory_takes_one_host_link() -> None:
    ways = ways_of(*[made(LinkSpec(100.0), LinkSpec(20.0, 0.25))] * 2)
    way = ways.between(0, 1, from_host=True)
    assert way is not None and (way.links, way.latency_s) == (("i1 host link in",), 0.25)


def test_there_is_no_way_over_unknown_links_or_between_other_blocks() -> None:
    assert ways_of(made(), made()).between(0, 1) is None
    assert ways_of(made(LinkSpec(1.0)), made()).between(0, 1) is None
    assert ways_of(made(), made(), spec=SPEC).between(0, 1) is not None
    assert ways_of(made(), made(), spec=SPEC, sizes=(2048, 4096)).between(0, 1) is None

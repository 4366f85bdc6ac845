"""Both ends of a handoff in one process: orders, refusals, cancelling, closing, flow control."""

import socket
import threading
from queue import SimpleQueue
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.batch.streams import Here, Stream, ThreadEvent
from daemon.engine.kv.pool import PagedKV
from daemon.engine.transfer import rows
from daemon.engine.transfer.connect import EndPools as Pools
from daemon.engine.transfer.connect import connect_receiver, connect_sender
from daemon.engine.transfer.layout import WHOLE, TransferError, layout_of
from daemon.engine.transfer.messages import (
    Broken,
    Bye,
    Done,
    Lost,
    Opened,
    TransferSocket,
    TransferWay,
)
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.routes import PeerRoute, Sources
from daemon.engine.transfer.sender import PoolCounts, Sender
from daemon.engine.transfer.sums import BlockSums, Summer
from daemon.protocol.ring import Filled
from daemon.wire.frames import inline_frame
from tests.engine.transfer.both_ends import SOURCE, TARGET, Pair, broken, columns
from tests.hangs import HANG_S

NO_SUMS = np.zeros(0, np.int64)
BLOCKS, TARGETS, FULL = columns([1, 2, 3], [4, 5, 6], [4, 4, 4])


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_transfers_arrive(data: st.DataObject) -> None:
    with Pair() as pair:
        free = data.draw(st.permutations(range(30)))
        counts = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
        for transfer, count in enumerate(counts):
            blocks = data.draw(st.lists(st.integers(0, 23), min_size=count, max_size=count))
            targets, free = free[:count], free[count:]
            pair.send(transfer, *columns(blocks, targets))
        told = [pair.received.get(timeout=HANG_S) for _ in counts]
        assert [getattr(one, "transfer", None) for one in told] == list(range(len(counts)))
        assert all(isinstance(pair.sent.get(timeout=HANG_S), Done) for _ in counts)
        assert torch.equal(pair.target.raw, pair.expected)


@pytest.mark.parametrize(
    ("blocks", "targets", "fills", "fault"),
    [
        ([24], [0], [4], "the 24 of this pool"),
        ([0], [30], [4], "the 30 of the receiver's pool"),
        ([0], [-1], [4], "the 30 of the receiver's pool"),
        ([0, 1], [5, 5], [4, 4], "a target twice"),
        ([0, 1], [5, 6], [4], "not as many"),
        ([], [], [], "not as many"),
    ],
)
def test_orders_that_cannot_be_are_refused(
    blocks: list[int], targets: list[int], fills: list[int], fault: str
) -> None:
    with Pair() as pair:
        with pytest.raises(ValueError, match=fault):
            pair.sender.send(1, *columns(blocks, targets, fills))
        pair.send(1, *columns([0], [0]))
        assert isinstance(pair.sent.get(timeout=HANG_S), Done), "nothing is left of it"


def test_an_open_transfer_is_not_opened_again() -> None:
    with Pair() as pair:
        pair.sender.begin_layers(1, BLOCKS, TARGETS, FULL)
        with pytest.raises(ValueError, match="transfer 1 is open"):
            pair.sender.send(1, BLOCKS, TARGETS, FULL)


def test_a_cancelled_transfer_is_broken_at_both_ends() -> None:
    with Pair() as pair:
        pair.sender.begin_layers(1, BLOCKS, TARGETS, FULL)
        pair.sender.begin_layers(2, *columns([9], [9], [3]))
        pair.sender.after_layer(0)
        pair.send(3, *columns([20], [20]))
        assert isinstance(pair.received.get(timeout=HANG_S), Done), "and so 1 is known there"
        assert isinstance(pair.sent.get(timeout=HANG_S), Done)
        pair.sender.cancel(1)
        for layer in (1, 2):
            pair.sender.after_layer(layer)
        pair.sender.after_step()
        pair.sender.cancel(8)  # which is not open
        for told in (pair.sent, pair.received):
            assert broken(told.get(timeout=HANG_S)) == (1, "it was cancelled")
            done = told.get(timeout=HANG_S)
            assert isinstance(done, Done) and done.transfer == 2
        assert torch.equal(pair.target.raw[9], pair.source.raw[9])
        assert pair.target.fills[9] == 3


def test_a_sender_closes_beside_a_receiver_that_says_nothing() -> None:
    pair = Pair()
    pair.sender.start(pair.sent.put)
    for transfer in range(3):
        pair.send(transfer, *columns([0, 1, 2, 3], [0, 1, 2, 3]))
    pair.sender.close()
    told = [pair.sent.get_nowait() for _ in range(3)]
    assert list(map(broken, told)) == [(transfer, "the sender closed") for transfer in range(3)]
    assert pair.sent.empty()
    pair.receiver.close()
    assert pair.received.empty(), "it was never asked to tell"


def test_a_receiver_that_fails_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such memory")

    monkeypatch.setattr(rows, "scatter", fail)
    reason = "the receiver failed: StreamError: RuntimeError: no such memory"
    with Pair() as pair:
        pair.send(1, BLOCKS, TARGETS)
        for told in (pair.received, pair.sent):
            assert broken(told.get(timeout=HANG_S)) == (1, reason)
            assert told.get(timeout=HANG_S) == Lost(reason)


def test_a_sender_that_fails_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such memory")

    monkeypatch.setattr(rows, "gather", fail)
    reason = "the sender failed: StreamError: RuntimeError: no such memory"
    with Pair() as pair:
        pair.send(1, BLOCKS, TARGETS)
        for told in (pair.received, pair.sent):
            assert broken(told.get(timeout=HANG_S)) == (1, reason)
            assert told.get(timeout=HANG_S) == Lost(reason)


def test_copies_begin_behind_the_steps_but_for_what_is_computed() -> None:
    pair = Pair()
    launched = ThreadEvent()
    pair.sender._compute = cast(Stream, _At(launched))
    with pair:
        pair.send(2, BLOCKS, TARGETS, computed=True)
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        pair.send(1, BLOCKS, TARGETS)
        pair.source.raw[1] = 7  # what the step writes
        pair.expected[4] = 7
        launched.reach()
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        assert torch.equal(pair.target.raw, pair.expected)


class _At:
    """A stream of steps that has come as far as an event."""

    def __init__(self, event: ThreadEvent) -> None:
        self._event = event

    def record(self) -> ThreadEvent:
        return self._event


class _PeerMover:
    """Straight into a pool of the same process."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._source, self._target = source, target
        self.begun, self.ended = threading.Event(), ThreadEvent()
        self.ended.reach()

    def across(self, spans: Any, blocks: Any, targets: Any, after: Any) -> ThreadEvent:
        after.synchronize()
        self.begun.set()
        for start, size, *_ in spans:
            read = self._source[blocks.tolist(), start : start + size]
            self._target[targets.tolist(), start : start + size] = read
        return self.ended

    def close(self) -> None:
        self.ended.synchronize()


def summer(cache: PagedKV) -> Summer:
    return Summer(BlockSums(layout_of(cache), cache.raw.device), cache.raw)


def straight(cleared: ThreadEvent) -> Pair:
    """A pair whose sender writes into the receiver's pool, once its steps have come so far."""

    def connect(source: PagedKV, target: PagedKV) -> tuple[Sender, Receiver]:
        here, there = (TransferSocket(sock) for sock in socket.socketpair())
        mover: Any = _PeerMover(source.raw, target.raw)
        layout, steps = layout_of(source), cast(Stream, _At(cleared))
        route = PeerRoute(layout, mover, mover, Sources(summer(source)))
        sender = Sender(here, layout, PoolCounts(24, 30), Here(), route)
        return sender, Receiver(there, layout_of(target), target, steps, None, -1, summer(target))

    return Pair(connect)


@pytest.mark.parametrize("layered", [False, True])
def test_a_pool_is_written_when_its_own_steps_are_done(layered: bool) -> None:
    cleared = ThreadEvent()
    with straight(cleared) as pair:
        assert pair.sender.direct
        before = pair.expected.clone()
        if layered:
            pair.sender.begin_layers(1, BLOCKS, TARGETS, FULL)
            for layer in range(3):
                pair.sender.after_layer(layer)
            pair.sender.after_step()
            pair.expected[TARGETS.tolist()] = pair.source.raw[BLOCKS.tolist()]
        else:
            pair.send(1, BLOCKS, TARGETS)
        assert torch.equal(pair.target.raw, before), "steps are still at it"
        cleared.reach()
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        assert isinstance(pair.sent.get(timeout=HANG_S), Done)
        assert torch.equal(pair.target.raw, pair.expected)


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_either_end_of_a_straight_way_may_close_first(first: str) -> None:
    cleared = ThreadEvent()
    cleared.reach()
    with straight(cleared) as pair:
        pair.sender.begin_layers(1, BLOCKS, TARGETS, FULL)
        pair.sender.after_layer(0)
        pair.send(2, *columns([0], [0]))
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        assert isinstance(pair.sent.get(timeout=HANG_S), Done)
        getattr(pair, first).close()
        reason = f"the {first} closed"
        own, other = pair.sent, pair.received
        if first == "receiver":
            own, other = other, own
        assert broken(own.get(timeout=HANG_S)) == (1, reason)
        assert broken(other.get(timeout=HANG_S)) == (1, reason)
        assert other.get(timeout=HANG_S) == Lost(reason)
        assert own.empty(), "who closes knows"


def test_a_receiver_that_closes_waits_for_the_other_gpu() -> None:
    cleared = ThreadEvent()
    cleared.reach()
    with straight(cleared) as pair:
        route: Any = pair.sender._route
        mover, ended = route._mover, ThreadEvent()
        mover.ended = ended
        pair.send(1, BLOCKS, TARGETS)
        assert mover.begun.wait(20)
        closing = threading.Thread(target=pair.receiver.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive() and pair.received.empty(), "a copy into its pool is under way"
        ended.reach()
        closing.join(20)
        assert broken(pair.received.get_nowait()) == (1, "the receiver closed")


def test_rubbish_ends_the_link_with_a_word() -> None:
    cache = TARGET.make()
    here, there = socket.socketpair()
    told: list[Any] = []
    here.send(b"x")
    with pytest.raises(TransferError, match="no sender"):
        connect_receiver(there, Pools(cache))
    here, there = socket.socketpair()
    link = TransferSocket(here)
    receiver = Receiver(
        TransferSocket(there), layout_of(cache), cache, Here(), None, -1, summer(cache)
    )
    receiver.start(told.append)
    link.send(TransferWay(direct=True))
    assert "the sender sent TransferWay" in str(link.receive())
    link.hang_up()
    receiver.close()
    assert told == [Lost("the receiver failed: TransferError: the sender sent TransferWay")]


def test_an_end_that_does_not_answer_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.engine.transfer.connect.MEETING_S", 0.05)
    here, there = socket.socketpair()
    with pytest.raises(TransferError, match="did not meet: timed out"):
        connect_sender(here, Pools(SOURCE.make()))
    there.close()
    here, there = socket.socketpair()
    there.close()
    with pytest.raises(TransferError, match="did not meet"):
        connect_sender(here, Pools(SOURCE.make()))


def test_layers_that_nobody_told_of_follow_the_step() -> None:
    pair = Pair()
    sender = pair.sender
    sender.begin_layers(1, BLOCKS, TARGETS, FULL)
    assert told(pair) == []
    sender.after_layer(0)
    sender.after_layer(2)  # 1 is missing: nothing is guessed
    assert told(pair) == [(1, 0)]
    sender.begin_layers(2, *columns([9], [9], [3]))
    sender.after_step()
    assert told(pair) == [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2)], "late, 2 has all its layers"
    sender.after_layer(0)
    sender.after_step()
    assert told(pair) == [], "nothing is left of them"
    sender.close()
    pair.receiver.close()


def told(pair: Pair) -> list[tuple[int, int]]:
    """Transfers and layers that a sender which was not started would have copied."""
    pieces: Any = pair.sender._pieces
    found = [pieces.get() for _ in range(pieces.qsize())]
    return [(piece.transfer.number, piece.layer) for piece in found]


def test_a_step_that_failed_leaves_the_next_one_whole() -> None:
    pair = Pair()
    sender = pair.sender
    sender.begin_layers(1, BLOCKS, TARGETS, FULL)
    for layer in (0, 1):
        sender.after_layer(layer)
    sender.cancel(1)  # the step failed: nobody says that it was launched
    pieces: Any = sender._pieces
    while pieces.qsize():
        pieces.get()
    sender.begin_layers(2, BLOCKS, TARGETS, FULL)
    for layer in range(3):
        sender.after_layer(layer)
    sender.after_step()
    assert told(pair) == [(2, 0), (2, 1), (2, 2)]
    sender.close()
    pair.receiver.close()


def test_a_transfer_cancelled_before_its_first_copy_is_broken_there_too() -> None:
    with Pair() as pair:
        pair.sender.begin_layers(1, BLOCKS, TARGETS, FULL)
        pair.sender.cancel(1)
        pair.sender.cancel(1)  # and once is enough
        for told in (pair.sent, pair.received):
            assert broken(told.get(timeout=HANG_S)) == (1, "it was cancelled")
        pair.send(2, BLOCKS, TARGETS)
        for told in (pair.sent, pair.received):
            assert isinstance(told.get(timeout=HANG_S), Done), "and told once"


@pytest.mark.parametrize(
    "changes",
    [
        {"layer": 3},
        {"layer": -2},
        {"slot": 2},
        {"slot": -1},
        {"first": 2},
        {"first": -1},
        {"count": 0},
        {"first": 1, "count": 3},
        {"count": 3, "layer": WHOLE},
        {"size_bytes": 4},
    ],
)
def test_a_slot_that_cannot_be_is_not_copied(changes: dict[str, int]) -> None:
    """A kernel would write beyond the pool."""
    pair = Pair()
    pair.receiver.start(pair.received.put)
    link = pair.sender._link
    link.send(Opened(1, BLOCKS, FULL, 3))
    order: Any = msgspec.structs.replace(Filled(1, 0, 0, 0, 2, 0, NO_SUMS), **changes)
    layout = layout_of(pair.target)
    if not order.size_bytes and layout.has(order.layer):
        size = order.count * layout.size(order.layer)
        order = msgspec.structs.replace(order, size_bytes=size)
    link.send(order)
    pair.sender.close()
    broken, lost = pair.received.get(timeout=HANG_S), pair.received.get(timeout=HANG_S)
    pair.receiver.close()
    assert isinstance(broken, Broken) and isinstance(lost, Lost)
    assert "TransferError: t" in lost.reason
    assert torch.equal(pair.target.raw, pair.expected), "nothing is written"


def test_who_sends_rubbish_is_told_so() -> None:
    here, there = socket.socketpair()
    heard = TransferSocket(here)
    cache = TARGET.make()
    receiver = Receiver(
        TransferSocket(there), layout_of(cache), cache, Here(), None, -1, summer(cache)
    )
    told: SimpleQueue[Any] = SimpleQueue()
    receiver.start(told.put)
    here.sendall(inline_frame(b"rubbish"))
    assert isinstance(told.get(timeout=HANG_S), Lost)
    assert isinstance(heard.receive(), Bye)
    heard.close()
    receiver.close()

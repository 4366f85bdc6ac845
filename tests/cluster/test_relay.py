"""Links over two nodes: real ends and pools, each end with the host of its own node between."""

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from daemon.cluster import direct, relay
from daemon.cluster.direct import DirectConnection, Door, connect
from daemon.cluster.relay import LinkRelays
from daemon.engine.kv.pool import PagedKV
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.messages import Broken, Done, Lost
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.sender import Sender
from daemon.protocol.ring import Filled, RingShape
from daemon.protocol.worker import EndLink, NewLink, NodeDoor, Shutdown, StartTransfer
from daemon.wire.columns import decoder, encoder, int32
from daemon.wire.frames import inline_frame
from tests.engine.transfer.both_ends import Pair, columns
from tests.hangs import HANG_S
from tests.wire.descriptors import open_descriptors

pytest.importorskip("cryptography")
BLOCKS, TARGETS, _ = columns(list(range(7)), list(range(10, 17)), [4] * 7)
NUMBERS = itertools.count(1)


class Node:
    """A node's relays, and its worker's end of the socket for links."""

    def __init__(self) -> None:
        self.door = Door("127.0.0.1")
        links, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.worker.settimeout(HANG_S)
        self._links, self.relays = links, LinkRelays(self.door, links)

    def order(self, message: NewLink | EndLink | StartTransfer) -> bool:
        return self.relays.take(encoder().encode(message))

    def told(self) -> tuple[NewLink | EndLink | StartTransfer, list[int]]:
        """What the worker gets next, with its descriptors."""
        news, fds, _flags, _address = socket.recv_fds(self.worker, 1 << 20, 1)
        return decoder(NewLink | EndLink | StartTransfer).decode(news), fds

    def joined(self, peer: int, sends: bool, link: int, door: NodeDoor | None) -> socket.socket:
        """The worker's end of a new link."""
        assert self.order(NewLink(peer, sends, link, door=door))
        message, (fd,) = self.told()
        assert isinstance(message, NewLink) and message.link == link
        return socket.socket(fileno=fd)

    def close(self) -> None:
        self.relays.close()
        self.worker.close()
        self._links.close()


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    if request.param:
        monkeypatch.setattr(direct, "is_loopback", lambda _address: False)
    found = [Node(), Node()]
    yield found
    for node in found:
        node.close()


def over(nodes: list[Node], link: int) -> Callable[[PagedKV, PagedKV], tuple[Sender, Receiver]]:
    """Joins ends over two nodes."""

    def join(source: PagedKV, target: PagedKV) -> tuple[Sender, Receiver]:
        comes = nodes[1].joined(0, False, link, None)
        leaves = nodes[0].joined(1, True, link, nodes[1].door.here)
        return meet(source, target, leaves, comes)

    return join


def meet(
    source: PagedKV, target: PagedKV, leaves: socket.socket, comes: socket.socket
) -> tuple[Sender, Receiver]:
    with ThreadPoolExecutor(1) as other:
        receiver = other.submit(connect_receiver, comes, EndPools(target))
        sender = connect_sender(leaves, EndPools(source), num_slots=2, slot_bytes=4096)
        return sender, receiver.result()


def test_blocks_go_to_another_node_and_are_checked_there(nodes: list[Node]) -> None:
    """More than both slots of the ring hold: the far end's room is waited for."""
    with Pair(over(nodes, next(NUMBERS))) as pair:
        for transfer in (1, 2):
            pair.send(transfer, BLOCKS, TARGETS)
            for told in (pair.sent, pair.received):
                done = told.get(timeout=HANG_S)
                assert isinstance(done, Done) and done.num_right == 7 and not done.differs
        assert torch.equal(pair.target.raw, pair.expected)
        assert not pair.sender.direct


def test_bytes_that_change_between_the_nodes_are_found(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = DirectConnection.send

    def spoilt(self: DirectConnection, data: bytes) -> None:
        send(self, data[:-1] + bytes([255 - data[-1]]) if len(data) > 3000 else data)

    with Pair(over(nodes, next(NUMBERS))) as pair:
        monkeypatch.setattr(DirectConnection, "send", spoilt)
        pair.send(1, BLOCKS, TARGETS)
        done = pair.received.get(timeout=HANG_S)
        assert isinstance(done, Done) and done.differs and done.num_right < 7


def test_the_other_host_may_come_before_the_daemons_order(nodes: list[Node]) -> None:
    link = next(NUMBERS)
    leaves = nodes[0].joined(1, True, link, nodes[1].door.here)
    await_(lambda: link in nodes[1].relays._early)
    comes = nodes[1].joined(0, False, link, None)
    with Pair(lambda source, target: meet(source, target, leaves, comes)) as pair:
        pair.send(1, BLOCKS, TARGETS)
        assert isinstance(pair.received.get(timeout=HANG_S), Done)


@pytest.mark.parametrize("at", [0, 1])
def test_a_link_that_the_daemon_ends_on_one_side_is_down_on_both(
    at: int, nodes: list[Node]
) -> None:
    """As where the other node is gone: it says nothing, and the connection to it stays."""
    link = next(NUMBERS)
    pair = Pair(over(nodes, link))
    pair.sender.start(pair.sent.put)
    pair.receiver.start(pair.received.put)
    assert nodes[at].order(EndLink(1 - at, at == 0, link))
    message, fds = nodes[at].told()
    assert isinstance(message, EndLink) and not fds
    for told in (pair.sent, pair.received):
        assert isinstance(told.get(timeout=HANG_S), Lost)
    pair.sender.close()
    pair.receiver.close()
    await_(lambda: not any(node.relays._running for node in nodes))


def test_a_worker_that_dies_takes_its_link_down_at_the_other_node(nodes: list[Node]) -> None:
    with Pair(over(nodes, next(NUMBERS))) as pair:
        pair.send(1, BLOCKS, TARGETS)
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        assert isinstance(pair.sent.get(timeout=HANG_S), Done)
        pair.sender._link.hang_up()
        assert isinstance(pair.received.get(timeout=HANG_S), Lost)


def test_what_is_on_its_way_to_a_node_that_says_nothing_is_answered(nodes: list[Node]) -> None:
    link = next(NUMBERS)
    pair = Pair(over(nodes, link))
    pair.sender.start(pair.sent.put)  # the receiver does not, and so reads nothing
    pair.send(1, BLOCKS, TARGETS)
    assert nodes[0].order(EndLink(1, True, link))
    broken = pair.sent.get(timeout=HANG_S)
    assert isinstance(broken, Broken) and "gone" in broken.reason
    pair.sender.close()
    pair.receiver.close()


def test_orders_for_steps_are_left_to_them(nodes: list[Node]) -> None:
    """Of transfers those alone that wait for no step."""
    order = StartTransfer(1, 1, int32([1]), int32([2]), 16)
    assert not nodes[0].order(order)
    assert nodes[0].order(msgspec.structs.replace(order, at_once=True))
    message, _ = nodes[0].told()
    assert isinstance(message, StartTransfer) and message.at_once
    assert not nodes[0].relays.take(encoder().encode(Shutdown()))


def test_who_does_not_say_for_which_link_it_comes_is_sent_away(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "NUMBER_S", 0.05)
    assert connect(nodes[0].door.here).receive() == b""
    assert not nodes[0].relays._early


def test_a_slot_beyond_the_ring_ends_the_link(nodes: list[Node]) -> None:
    link = next(NUMBERS)
    comes = nodes[1].joined(0, False, link, None)
    far = connect(nodes[1].door.here)
    far.send(relay._NUMBER.pack(link))
    encode = encoder().encode
    far.send(inline_frame(encode(RingShape(2, 4096))))
    far.send(inline_frame(encode(Filled(1, 2, 0, 0, 1, 8, int32([])))) + inline_frame(bytes(8)))
    comes.settimeout(HANG_S)
    while comes.recv(4096):
        pass
    comes.close()
    far.close()


def test_nothing_of_a_link_is_left(nodes: list[Node]) -> None:
    before = open_descriptors()
    with Pair(over(nodes, next(NUMBERS))) as pair:
        pair.send(1, BLOCKS, TARGETS)
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
    nobody = NodeDoor("127.0.0.1", 1, b"", b"")
    alone = nodes[0].joined(1, True, next(NUMBERS), nobody)
    assert alone.recv(1) == b"", "there is no such host"
    alone.close()
    await_(lambda: open_descriptors() == before)


def await_(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_node_that_closes_ends_its_links() -> None:
    found = [Node(), Node()]
    with contextlib.closing(found[0]), Pair(over(found, next(NUMBERS))) as pair:
        found[1].close()
        assert isinstance(pair.sent.get(timeout=HANG_S), Lost)
        assert isinstance(pair.received.get(timeout=HANG_S), Lost)

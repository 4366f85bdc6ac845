"""The links of a worker and one peer, as they follow one another."""

import socket
import threading
from queue import SimpleQueue

from daemon.engine.transfer.connect import EndPools
from daemon.engine.transfer.peer import LinkEnd, LinkPeer
from daemon.protocol.worker import FromWorker, LinkState
from tests.engine.transfer.both_ends import SOURCE
from tests.hangs import HANG_S


def test_a_link_that_is_superseded_before_it_is_joined_is_reported_too() -> None:
    """Other ranks may have joined theirs: a link that one says nothing of is never down."""
    said: SimpleQueue[FromWorker] = SimpleQueue()
    joined = threading.Event()

    def say(message: FromWorker) -> None:
        said.put(message)
        assert joined.wait(HANG_S)

    peer = LinkPeer(LinkEnd(1, True), EndPools(SOURCE.make()), say)
    ends = [socket.socketpair() for _ in range(3)]
    for _, theirs in ends:
        theirs.close()
    peer.join(1, ends[0][0])
    first = said.get(timeout=HANG_S)
    peer.join(2, ends[1][0])  # while the thread that joins still tells of the first
    peer.join(3, ends[2][0])
    joined.set()
    states = [first, *(said.get(timeout=HANG_S) for _ in range(2))]
    assert [(type(one), one.link, one.is_up) for one in states if isinstance(one, LinkState)] == [
        (LinkState, link, False) for link in (1, 2, 3)
    ]

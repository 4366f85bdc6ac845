"""A worker's proxy before its worker runs: what it waits for, and who hangs up meanwhile."""

import argparse
import socket
import sys
from types import SimpleNamespace

import pytest

from daemon.cluster import proxy
from daemon.cluster.proxy import Proxy
from daemon.protocol.worker import FromWorker, Loading
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder
from tests.e2e.live import free_port


def test_a_daemon_that_hangs_up_ends_the_wait_for_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "RETRY_S", 0.01)
    ours, theirs = socket.socketpair()
    ours.close()
    nobody = argparse.Namespace(address=f"127.0.0.1:{free_port()}")
    with theirs:
        assert Proxy(BlockingChannel(theirs), nobody).serve() == 0


def test_a_wait_for_an_actor_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may be lost before the actor is there: Ray then looks for another one."""
    looks = iter([([], ["answer"]), ([], ["answer"]), (["answer"], [])])
    ray = SimpleNamespace(wait=lambda _answers, timeout: next(looks), get=lambda answer: answer)
    monkeypatch.setitem(sys.modules, "ray", ray)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        placing = Proxy(BlockingChannel(theirs), argparse.Namespace())
        assert placing._answered("answer") == "answer"
        theirs.shutdown(socket.SHUT_WR)
        channel, told = BlockingChannel(ours), list[FromWorker]()
        while (payload := channel.receive()) is not None:
            told.append(decoder(FromWorker).decode(payload))
    assert told == [Loading("node", 0.0), Loading("node", 0.0)]

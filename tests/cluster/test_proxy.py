"""A worker's proxy before its worker runs: what it waits for, and who hangs up meanwhile."""

import argparse
import socket
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from daemon.cluster import proxy
from daemon.cluster.host import WorkerHost
from daemon.cluster.proxy import Proxy
from daemon.protocol.worker import Exited, FromWorker, Loading, NodeDoor
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder
from tests.cluster.hosts import begun, connected
from tests.e2e.live import free_port
from tests.hangs import HANG_S


class LostNodeError(Exception):
    """Ray says so of an actor's answer."""


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


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_node_that_is_lost_before_the_proxy_has_come_is_told_as_lost(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens there any more: Ray knows whether that is the worker's fault."""

    def get(_end: str) -> bytes:
        if is_lost:
            raise LostNodeError
        return b"its end"

    ray = SimpleNamespace(wait=lambda ends, timeout: (ends, []), get=get)
    monkeypatch.setitem(sys.modules, "ray", ray)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        placing = Proxy(BlockingChannel(theirs), argparse.Namespace())
        nobody = NodeDoor("127.0.0.1", free_port(), b"", b"token")
        with pytest.raises(LostNodeError if is_lost else RuntimeError):
            placing._connected(nobody, "its end")


def test_a_connection_that_is_lost_on_one_side_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host hears of it: it would wait for ever, and Ray's promise of its end with it."""
    monkeypatch.setattr(Proxy, "_pass_down", lambda _proxy, _host: None)  # it ends its process
    ray = SimpleNamespace(get=lambda end: end.result())
    monkeypatch.setitem(sys.modules, "ray", ray)
    host, told = WorkerHost(), list[FromWorker]()
    assert begun(host) == ""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(2) as beside:
        end: Future[bytes]
        connection, end = connected(host, beside)
        connection._sock.shutdown(socket.SHUT_RD)
        alone = Proxy(BlockingChannel(theirs), argparse.Namespace())
        passing = beside.submit(alone._pass, connection, end)
        try:
            passing.result(HANG_S)
        finally:
            connection.close()
        theirs.shutdown(socket.SHUT_WR)
        channel = BlockingChannel(ours)
        while (payload := channel.receive()) is not None:
            told.append(decoder(FromWorker).decode(payload))
    assert told[-1] == Exited(0)

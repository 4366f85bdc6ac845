"""Orders to send blocks: which way each goes to a worker."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from daemon.protocol.worker import StartTransfer
from daemon.supervisor.worker import WorkerProcess
from daemon.wire.channel import Channel
from daemon.wire.columns import encoder, int32
from tests.engine.process import cpu_load
from tests.supervisor.test_worker import Told

_encode = encoder().encode


def order(num_blocks: int = 2, at_once: bool = True) -> StartTransfer:
    blocks = int32(range(num_blocks))
    return StartTransfer(7, 1, blocks, blocks, 16 * num_blocks, at_once=at_once)


@contextmanager
def both_ways() -> Iterator[tuple[WorkerProcess, list[bytes], socket.socket]]:
    """A worker's supervisor, what went behind the plans, and the worker's end of the other way."""
    worker, behind = Told(cpu_load("none")).worker, list[bytes]()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    worker._channel = cast(Channel, SimpleNamespace(send=behind.append))
    worker._links = ours
    with ours, theirs:
        yield worker, behind, theirs


def test_what_waits_for_no_step_goes_beside_the_plans() -> None:
    with both_ways() as (worker, behind, beside):
        worker.start_transfer(order())
        assert beside.recv(1 << 20) == _encode(order()) and not behind


def test_what_waits_for_steps_goes_behind_them() -> None:
    with both_ways() as (worker, behind, beside):
        worker.start_transfer(order(at_once=False))
        assert behind == [_encode(order(at_once=False))]
        with pytest.raises(BlockingIOError):
            beside.recv(1)


def test_what_does_not_go_beside_them_goes_behind_them() -> None:
    """It is too long for a packet; or the worker takes nothing in, and the way is full."""
    with both_ways() as (worker, behind, beside):
        long = order(1_000_000)
        worker.start_transfer(long)
        assert behind == [_encode(long)]
        for _ in range(10_000):
            worker.start_transfer(order())
        assert len(behind) > 1
        got = 0
        while len(behind) + got < 10_001:
            assert beside.recv(1 << 20) == _encode(order())
            got += 1


def test_a_worker_that_is_gone_gets_none() -> None:
    with both_ways() as (worker, behind, beside):
        worker._channel = None
        worker.start_transfer(order())
        assert not behind
        with pytest.raises(BlockingIOError):
            beside.recv(1)

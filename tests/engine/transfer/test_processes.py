"""Handoff between real processes: every byte arrives, and whoever dies leaves a clear word."""

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.gpu.handoff_peer import (
    AfterLayer,
    Ended,
    Join,
    Joined,
    Leave,
    Next,
    Peer,
    PoolSizes,
    Read,
    Send,
    open_things,
)
from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.messages import Done, Lost
from daemon.wire.columns import Int32
from tests.engine.transfer.both_ends import SOURCE, TARGET, broken, columns
from tests.gpu.handoff_checks import handoff_checks

SMALL = {"num_slots": 2, "slot_bytes": 4096}
"""Less than any of these transfers."""
GONE = "the receiver is gone"


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


def pools(kv_dtype: str) -> tuple[PoolSizes, PoolSizes]:
    return PoolSizes(seed=1, kv_dtype=kv_dtype), PoolSizes(seed=2, num_blocks=30, kv_dtype=kv_dtype)


def moved(source: PoolSizes, target: PoolSizes, *pairs: tuple[Int32, Int32]) -> np.ndarray:
    """What the receiver's pool then holds."""
    expected = target.contents().numpy()
    for blocks, targets in pairs:
        expected[targets] = source.contents().numpy()[blocks]
    return expected


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
@pytest.mark.parametrize("layered", [False, True])
def test_every_byte_arrives(peer: Peer, layered: bool, kv_dtype: str) -> None:
    source, target = pools(kv_dtype)
    before = open_things()
    here = peer.join(Join(target, sends=False), Join(source, sends=True, **SMALL))
    blocks, targets, fills = columns([3, 9, 1, 7, 8], [8, 2, 29, 0, 5], [4, 4, 4, 4, 1])
    if layered:
        here.sender.begin_layers(7, blocks, targets, fills)
        for layer in range(source.num_layers):
            here.sender.after_layer(layer)
        here.sender.after_step()
    else:
        here.sender.send(7, blocks, targets, fills)
    assert isinstance(here.next(), Done)
    assert isinstance(peer.ask(Next()), Done)
    contents = peer.ask(Read())
    expected = moved(source, target, (blocks, targets))
    assert np.array_equal(contents.raw.reshape(expected.shape), expected)
    assert contents.fills[targets].tolist() == fills.tolist()
    here.end.close()
    assert peer.ask(Next()) == Lost("the sender closed")
    assert peer.ask(Leave()).num_maps == 0
    del here
    assert open_things() == before


def test_transfers_interleave(peer: Peer) -> None:
    here = peer.join(Join(SOURCE, sends=True, **SMALL), Join(TARGET, sends=False))
    (a, b, c), (to_a, to_b, to_c) = (
        columns([0, 4, 8], [1, 2], [20, 21, 22, 3]),
        columns([9, 1, 5], [28, 11], [20, 21, 22, 23]),
    )
    full = columns([4, 4, 4], [4, 4], [4, 4, 4, 4])
    assert peer.ask(Send(1, a, to_a, full[0], layered=True)) == Joined()
    assert peer.ask(Send(2, b, to_b, full[1], layered=True)) == Joined()
    assert peer.ask(AfterLayer(0)) == Joined()
    peer.ask(Send(3, c, to_c, full[2]))
    for layer in (1, 2):
        peer.ask(AfterLayer(layer))
    told = [here.next() for _ in range(3)]
    assert all(isinstance(one, Done) for one in told)
    assert [one.transfer for one in told if isinstance(one, Done)] == [3, 1, 2]
    expected = moved(SOURCE, TARGET, (a, to_a), (b, to_b), (c, to_c))
    assert np.array_equal(here.cache.raw.numpy(), expected)
    assert {type(peer.ask(Next())) for _ in range(3)} == {Done}
    here.end.close()
    assert peer.ask(Next()) == Lost("the receiver closed")
    peer.ask(Leave())


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"num_layers": 2}, "num_layers 3 here and 2 there"),
        ({"kv_dtype": "int8"}, "kv_dtype float32 here and int8 there"),
        ({"dtype": "bfloat16"}, "dtype float32 here and bfloat16 there"),
    ],
)
def test_pools_that_differ_do_not_meet(
    peer: Peer, changes: dict[str, object], difference: str
) -> None:
    other = PoolSizes(**changes)  # type: ignore[arg-type]
    before = open_things()
    with pytest.raises(TransferError, match=difference) as caught:
        peer.join(Join(other, sends=False), Join(SOURCE, sends=True))
    assert "there: the pools' blocks differ" in str(caught.value), "both ends say so"
    assert open_things() == before


def test_a_killed_sender_leaves_rubbish_and_says_so() -> None:
    before = open_things()
    with Peer() as peer:
        here = peer.join(Join(SOURCE, sends=True, **SMALL), Join(TARGET, sends=False))
        blocks, targets, full = columns([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [4, 4, 4, 4, 4])
        whole = columns([9], [9], [2])
        peer.ask(Send(1, blocks, targets, full, layered=True))
        peer.ask(AfterLayer(0))
        peer.ask(Send(2, *whole))
        told = here.next()
        assert isinstance(told, Done) and told.transfer == 2, "behind the first layer of 1"
        peer.kill()
        assert broken(here.next()) == (1, "the sender is gone")
        assert here.next() == Lost("the sender is gone")
    here.end.close()
    _leaves_nothing(here, before)


def test_a_killed_receiver_is_reported() -> None:
    before = open_things()
    with Peer() as peer:
        here = peer.join(Join(TARGET, sends=False), Join(SOURCE, sends=True, **SMALL))
        blocks, targets, full = columns([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [4, 4, 4, 4, 4])
        os.kill(peer.process.pid, signal.SIGSTOP)
        here.sender.send(1, blocks, targets, full)  # waits for slots in the end
        here.sender.begin_layers(2, *columns([7], [7], [4]))
        here.sender.after_layer(0)
        assert here.told.empty()
        peer.kill()
        assert [broken(here.next()) for _ in range(2)] == [(1, GONE), (2, GONE)]
        assert here.next() == Lost(GONE)
        with pytest.raises(TransferError, match=GONE):
            here.sender.send(3, blocks, targets, full)
        here.sender.after_layer(1)  # a step that goes on does not mind
    here.end.close()
    _leaves_nothing(here, before)


def _leaves_nothing(here: Ended, before: tuple[int, int]) -> None:
    del here.end
    assert open_things() == before


def test_what_a_gpu_is_checked_for_holds_here() -> None:
    found = list(handoff_checks("cpu"))
    assert len(found) == 7
    assert [check.line() for check in found if not check.ok] == []

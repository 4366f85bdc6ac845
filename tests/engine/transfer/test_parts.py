"""The parts of a handoff: flow control, layouts, movers, rings, memory of other processes."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu.handoff_peer import PoolSizes
from daemon.engine.batch.streams import Here
from daemon.engine.transfer import ipc, routes, rows
from daemon.engine.transfer.credits import AbandonedError, Clearances, RingCredits
from daemon.engine.transfer.layout import WHOLE, TransferError, layout_of
from daemon.engine.transfer.messages import (
    Hello,
    Shared,
    TransferSocket,
)
from daemon.engine.transfer.movers import GpuMovers
from daemon.engine.transfer.ring import SharedRing
from daemon.engine.transfer.routes import Outgoing, RingRoute, Sources, TransferPiece
from daemon.protocol.ring import Filled, new_memory
from tests.engine.transfer.both_ends import SOURCE, AnyTime, Timeline


class TestSlots:
    @given(st.integers(1, 5), st.lists(st.booleans(), max_size=40), st.data())
    def test_a_slot_has_one_user(self, count: int, moves: list[bool], data: st.DataObject) -> None:
        slots, taken = RingCredits(count), list[int]()
        for takes in moves:
            if takes and len(taken) < count:
                taken.append(slots.take())
            elif taken:
                slots.give(taken.pop(data.draw(st.integers(0, len(taken) - 1))))
            assert len(set(taken)) == len(taken) and set(taken) <= set(range(count))
        for slot in set(range(count)) - set(taken):
            with pytest.raises(ValueError, match="was not taken"):
                slots.give(slot)

    @pytest.mark.parametrize("ends", [False, True])
    def test_who_waits_is_woken(self, ends: bool) -> None:
        slots = RingCredits(1)
        slots.take()
        woken: list[int] = []

        def wait() -> None:
            try:
                woken.append(slots.take())
            except AbandonedError:
                woken.append(-1)

        thread = threading.Thread(target=wait)
        thread.start()
        slots.abandon() if ends else slots.give(0)
        thread.join(20)
        assert woken == [-1 if ends else 0]

    def test_nobody_waits_for_an_abandoned_clearance(self) -> None:
        clearances = Clearances()
        for transfer in (3, 4):
            clearances.ask(transfer)
        clearances.give(3)
        clearances.wait(3)
        clearances.forget(4)
        clearances.give(4)  # which was cancelled
        clearances.abandon()
        with pytest.raises(AbandonedError):
            clearances.wait(3)


@pytest.mark.parametrize("kv_dtype", ["", "int8", "float8_e4m3fn"])
def test_layers_are_where_the_cache_has_them(kv_dtype: str) -> None:
    cache = PoolSizes(num_blocks=2, kv_dtype=kv_dtype).make()
    layout = layout_of(cache)
    seen = torch.zeros(cache.block_bytes, dtype=torch.int32)
    for layer in range(3):
        cache.raw.zero_()
        cache.blocks[1, layer].view(torch.uint8).fill_(255)
        if cache.scales is not None:
            cache.scales[1, layer] = -1.0
        for start, size, *_ in layout.spans(layer):
            assert cache.raw[1, start : start + size].view(torch.int32).all()
            cache.raw[1, start : start + size] = 0
            seen[start : start + size] += 1
        assert not cache.raw.any(), "nothing of a layer lies elsewhere"
    assert (seen == 1).all()
    assert layout.size(WHOLE) == cache.block_bytes


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), counts=st.lists(st.integers(1, 3), min_size=1, max_size=8))
@pytest.mark.parametrize("kv_dtype", ["", "int8"])
def test_stages_are_never_shared(seed: int, counts: list[int], kv_dtype: str) -> None:
    """Kernels and copies of a GPU run in any order that its streams and events allow."""
    source, target = (PoolSizes(seed=n, kv_dtype=kv_dtype).make() for n in (1, 2))
    layout, times, expected = layout_of(source), Timeline(seed), target.raw.clone()
    steps, later_steps = times.stream(), times.stream()
    out, back = (
        GpuMovers(one.raw, 4096, (_two(times), times.stream()), rows.gather, rows.scatter)
        for one in (source, target)
    )
    blocks = np.split(np.random.default_rng(seed).permutation(24), np.cumsum(counts))[: len(counts)]
    pieces = []
    for number, some in enumerate(blocks):
        spans, size = layout.spans(number % 3), len(some) * layout.size(number % 3)
        slot, index = torch.zeros(size, dtype=torch.uint8), some.tolist()
        _invert(expected, index)
        for start, width, *_ in spans:
            expected[index, start : start + width] = 255 - source.raw[index, start : start + width]
        steps.run(partial(_invert, source.raw, index))
        pieces.append((spans, some, slot))
        out.out(spans, some, slot, steps.record())
    times.run()
    for spans, some, slot in pieces:
        later_steps.run(partial(_invert, target.raw, some.tolist()))
        back.back(spans, some, slot, later_steps.record())
    times.run()
    assert torch.equal(target.raw, expected)


def _two(times: Timeline) -> tuple[AnyTime, AnyTime]:
    return times.stream(), times.stream()


def _invert(pool: torch.Tensor, index: list[int]) -> None:
    """What a step does to blocks."""
    pool[index] = 255 - pool[index]


def test_a_long_piece_begins_with_little_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FIRST_BYTES", 1536)
    ring: Any = SimpleNamespace(num_slots=9, slot_bytes=4 * 1536, slot=lambda _, size: _zeros(size))
    movers: Any = SimpleNamespace(out=lambda *_: Here().record())
    layout = layout_of(SOURCE.make())
    transfer = Outgoing(1, np.arange(13), np.arange(13), np.arange(13), 1)
    piece = TransferPiece(transfer, WHOLE, Here().record(), last=True)
    route = RingRoute(layout, ring, movers, Sources(None))
    said = [one.wait() for one in route.copies(piece)]
    assert [msgspec.structs.astuple(one)[:5] for one in said if isinstance(one, Filled)] == [
        (1, slot, WHOLE, first, count)
        for slot, (first, count) in enumerate([(0, 1), (1, 2), (3, 4), (7, 4), (11, 2)])
    ]


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def test_messages_survive_the_wire() -> None:
    here, there = (TransferSocket(sock) for sock in socket.socketpair())
    sent = [Hello(layout_of(SOURCE.make())), Filled(1, 0, WHOLE, 0, 1, 64, np.array([5]))]
    for message in sent:
        here.send(message)
    assert [there.receive() for _ in sent] == sent
    here.close()
    assert there.receive() is None
    there.close()


def test_memory_that_cannot_be_pinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter((0, 2))
    calls: list[tuple[Any, ...]] = []

    def register(*arguments: int) -> int:
        calls.append(arguments)
        return next(statuses)

    cudart = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=calls.append)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    entered: list[torch.device] = []

    @contextlib.contextmanager
    def device(entering: torch.device) -> Iterator[None]:
        entered.append(entering)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    fd = new_memory(3 * 4096)
    try:
        ring = SharedRing(fd, 3, 4096, torch.device("cuda:1"))
        with pytest.raises(TransferError, match=r"does not pin 12288 bytes \(error 2\)"):
            SharedRing(fd, 3, 4096, torch.device("cuda:1"))
        with pytest.raises(ValueError, match="greater than file size"):
            SharedRing(fd, 4, 4096, torch.device("cpu"))
    finally:
        os.close(fd)
    address = ring.slot(0, 1).data_ptr()
    assert ring.slot(2, 7).data_ptr() == address + 2 * 4096
    assert calls[0] == (address, 3 * 4096, 0)
    ring.close()
    ring.close()
    assert calls[2:] == [address], "once"
    assert entered == [torch.device("cuda:1")], "by a thread whose own GPU is the first one"


class _Driver:
    """CUDA's driver, as far as memory of other processes goes; it writes down what it is asked."""

    BASE, THERE = 1 << 40, 1 << 41

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            answers = {
                "cuMemGetAddressRange_v2": (self.BASE, 1 << 20),
                "cuIpcOpenMemHandle_v2": (self.THERE,),
            }
            for argument, answer in zip(arguments, answers.get(name, ()), strict=False):
                argument._obj.value = answer
            if name == "cuIpcGetMemHandle":
                assert arguments[1].value == self.BASE, "a handle is of an allocation"
                arguments[0]._obj.octets[:] = list(range(64))
            if name == "cuIpcOpenMemHandle_v2":
                assert bytes(arguments[1]) == bytes(range(64))
            return 201 if name == self.fails else 0

        return call


def test_memory_is_shared_by_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver()
    monkeypatch.setattr(ipc, "_driver", lambda: driver)
    gpu = torch.device("cuda:1")
    memory: Any = SimpleNamespace(device=gpu, nbytes=4096, data_ptr=lambda: driver.BASE + 512)
    shared = ipc.export(memory)
    assert shared == Shared(bytes(range(64)), 512, 4096)
    driver.calls.clear()
    opened = ipc.OpenedMemory(shared, gpu)
    assert opened.address == driver.THERE + 512
    opened.close()
    inside = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"]
    after = ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]
    assert driver.calls == [
        *inside, "cuIpcOpenMemHandle_v2", *after, *inside, "cuIpcCloseMemHandle", *after
    ]  # fmt: skip
    for call in ("cuIpcOpenMemHandle_v2", "cuDeviceGet"):
        driver.fails = call
        with pytest.raises(ipc.IpcError, match=rf"{call} failed \(error 201\)"):
            ipc.OpenedMemory(shared, gpu)
    with pytest.raises(ipc.IpcError, match="no handle"):
        ipc.OpenedMemory(Shared(b"short", 0, 1), gpu)

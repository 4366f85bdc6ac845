"""The ends of a handoff between GPUs, with a driver and kernels that the host stands in for."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daemon.engine.batch.streams import CudaStream, ThreadEvent
from daemon.engine.kv.host_int8 import pack_blocks, unpack_blocks
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer import connect, gpu_rows, ipc, movers, rows
from daemon.engine.transfer.messages import Done, Shared
from tests.engine.transfer.both_ends import SOURCE, Pair, columns, over_host
from tests.hangs import HANG_S

BLOCKS, TARGETS, FILLS = columns([3, 9, 4, 5, 20], [0, 7, 6, 12, 29], [4, 4, 4, 4, 2])


class OnGpu(torch.Tensor):
    """Memory of the host that says it is a GPU's."""

    is_cuda = True


class Gpu:
    """What torch and the driver are asked for; work is done at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools: dict[int, torch.Tensor] = {}
        self.warm: list[int] = []
        self.opened = 0
        self.waits: list[int] = []  # of each stream
        for name, stand_in in (
            ("Stream", self._stream),
            ("Event", self._event),
            ("stream", lambda _stream: contextlib.nullcontext()),
            ("device", lambda _device: contextlib.nullcontext()),
        ):
            monkeypatch.setattr(torch.cuda, name, stand_in)
        steps = CudaStream(self._stream("gpu"))
        for module in (connect, movers):
            monkeypatch.setattr(module, "compute_stream", lambda _: steps)
        monkeypatch.setattr(gpu_rows, "gather", rows.gather)
        monkeypatch.setattr(gpu_rows, "scatter", rows.scatter)
        monkeypatch.setattr(gpu_rows, "across", self._across)
        monkeypatch.setattr(gpu_rows, "warm_up", lambda layout, _: self.warm.append(layout))
        monkeypatch.setattr(connect, "export", self._export)
        monkeypatch.setattr(connect, "OpenedMemory", self._open)

    def pair(self, host: HostPool | None = None) -> Pair:
        def both(source: Any, target: Any) -> Any:
            for cache in (source, target):
                cache.raw = cache.raw.as_subclass(OnGpu)
                self.pools[cache.raw.data_ptr()] = cache.raw
            return over_host(source, target, host)

        return Pair(both)

    def _stream(self, device: Any) -> Any:
        number = len(self.waits)
        self.waits.append(0)

        def wait(event: Any) -> None:
            self.waits[number] += 1
            event.synchronize()

        return SimpleNamespace(device=device, wait_event=wait)

    def _event(self, enable_timing: bool, blocking: bool) -> Any:
        assert enable_timing and blocking
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)

    def _across(self, pool: Any, spans: Any, blocks: Any, address: int, targets: Any) -> None:
        slot = torch.zeros(len(blocks) * sum(span.total for span in spans), dtype=torch.uint8)
        rows.gather(pool, spans, blocks, slot)
        rows.scatter(slot, self.pools[address], spans, targets)

    def _export(self, memory: torch.Tensor) -> Shared:
        if not self.opened:
            raise ipc.IpcError("expandable segments")
        return Shared(b"handle", memory.data_ptr(), memory.nbytes)

    def _open(self, shared: Shared, _device: Any) -> Any:
        if self.opened < 2:
            raise ipc.IpcError("no peer access")
        return SimpleNamespace(address=shared.offset, close=lambda: self.warm.append(-1))


@pytest.mark.parametrize("layered", [False, True])
@pytest.mark.parametrize("way", ["straight", "direct copies", "staged"])
def test_gpus_hand_off(monkeypatch: pytest.MonkeyPatch, way: str, layered: bool) -> None:
    gpu = Gpu(monkeypatch)
    gpu.opened = 2 if way == "straight" else 0
    monkeypatch.setattr(movers, "DIRECT_BYTES", 1 if way == "direct copies" else 1 << 20)
    with gpu.pair() as pair:
        assert pair.sender.direct == (way == "straight")
        if layered:
            pair.sender.begin_layers(1, BLOCKS, TARGETS, FILLS)
            pair.sender.after_step()
        else:
            pair.sender.send(1, BLOCKS, TARGETS, FILLS)
        pair.expected[TARGETS.tolist()] = pair.source.raw[BLOCKS.tolist()]
        assert isinstance(pair.received.get(timeout=HANG_S), Done)
        assert isinstance(pair.sent.get(timeout=HANG_S), Done)
        assert torch.equal(pair.target.raw, pair.expected)
        assert pair.target.fills[TARGETS].tolist() == FILLS.tolist()
    assert len(gpu.warm) == 2, "both ends are ready, or one, which then lets go of the memory"
    assert len(gpu.waits) == 1 + (1 if way == "straight" else 2 * 3) + 2, "steps', copies', sums'"


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("straight", [False, True])
def test_what_lies_in_the_host_pool_goes_on(
    monkeypatch: pytest.MonkeyPatch, straight: bool, compress: bool
) -> None:
    """Some blocks at a time, behind the copies that bring them to the host."""
    gpu = Gpu(monkeypatch)
    gpu.opened = 2 if straight else 0
    source = SOURCE.make()
    monkeypatch.setattr(movers, "STAGE_BYTES", 2 * source.block_bytes)
    host, places, copied = HostPool(30, source, compress), BLOCKS, ThreadEvent()
    host.rows.zero_()
    with gpu.pair(host) as pair:
        pair.sender.send_host(1, places, TARGETS, FILLS, copied)
        values = torch.rand((30, *source.blocks.shape[1:]))
        if compress:
            every = torch.arange(30)
            pack_blocks(values, every, torch.full((30,), 4), host.rows)
            unpack_blocks(host.rows, values, every)
        else:
            host.rows.copy_(values.view(30, -1).view(torch.uint8))
        copied.reach()
        told: Any = pair.received.get(timeout=HANG_S)
        assert isinstance(told, Done) and told.num_right == len(TARGETS)
        pair.expected[TARGETS.tolist()] = values.view(30, -1).view(torch.uint8)[places.tolist()]
        assert torch.equal(pair.target.raw, pair.expected)
        assert pair.target.fills[TARGETS].tolist() == FILLS.tolist()
        with pytest.raises(ValueError, match="beyond the 30 of the host pool"):
            pair.sender.send_host(2, places + 20, TARGETS, FILLS, copied)


@pytest.mark.parametrize("opened", [0, 1])
def test_the_host_stands_in_where_a_pool_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, opened: int
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.opened = opened
    with caplog.at_level("INFO"), gpu.pair() as pair:
        assert not pair.sender.direct
    assert [record.message for record in caplog.records] == [
        "transfer: this pool is not shared, host memory is used: expandable segments",
        "transfer: the pool there cannot be opened, host memory is used: no peer access",
    ][opened : opened + 1]


def test_stages_are_first_written_behind_what_lay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory may be what a step that is still computing used before."""
    gpu = Gpu(monkeypatch)
    with gpu.pair():
        assert sorted(gpu.waits)[-6:] == [1] * 6, "two ends, each with three streams"


def test_a_thread_goes_back_to_no_gpu_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins on the first one, and torch would make a context there when it leaves a stream."""
    inside: list[str] = []

    def entering(name: str) -> Any:
        @contextlib.contextmanager
        def enter(_what: Any) -> Iterator[None]:
            inside.append(name)
            yield
            assert inside.pop() == name

        return enter

    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, entering(name))
    stream: Any = SimpleNamespace(device="cuda:1")
    seen: list[list[str]] = []
    CudaStream(stream).run(lambda: seen.append(list(inside)))
    assert seen == [["device", "stream"]]

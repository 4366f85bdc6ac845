"""What a GPU's driver is asked for, and in which order, with a driver that only writes it down."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daemon.engine.batch.streams import CudaStream, streams_of
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool, HostPoolError
from daemon.engine.swap.link import SwapLink
from tests.engine.driver import Driver


class FakeCuda:
    """`torch.cuda` as far as streams go; work runs at once, the calls are kept."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.num_events = 0
        self.current = self.stream_named("compute")

    def stream_named(self, name: str) -> Any:
        def wait_event(event: Any) -> None:
            self.calls.append(f"{name} waits {event.name}")

        return SimpleNamespace(name=name, device="cuda:1", wait_event=wait_event)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = iter(("outs", "ins"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda _device: self.stream_named(next(names)))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._entered)
        monkeypatch.setattr(torch.cuda, "device", self._entered)
        monkeypatch.setattr(torch.cuda, "Event", self._event)

    def _entered(self, _what: Any) -> Any:
        return torch.inference_mode(False)

    def _event(self, enable_timing: bool, blocking: bool) -> Any:
        assert enable_timing and blocking, "times are reported, and nobody spins"
        self.num_events += 1
        event = SimpleNamespace(name=str(self.num_events))
        event.record = lambda stream: self.calls.append(f"{stream.name} records {event.name}")
        event.synchronize = lambda: None
        event.elapsed_time = lambda later: 1000.0 * (int(later.name) - int(event.name))
        return event


def test_copies_are_fenced_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    streams = streams_of(torch.device("cuda:1"))
    assert isinstance(streams.compute, CudaStream)
    cache = PagedKV(4, 1, 4, 1, 2, torch.float32, torch.device("cpu"))
    copied: list[str] = []
    copies = SimpleNamespace(
        out=lambda *_: cuda.calls.append("copy out"), back=lambda *_: cuda.calls.append("copy in")
    )
    link = SwapLink(cache, HostPool(4, cache, False), streams, copies)
    link.listen(lambda one: copied.append(f"{one.step}: {one.out_s} {one.in_s}"), _raise)
    plans = Driver(4, [])
    plans.outs, plans.ins = [(0, 0)], [(1, 1)]
    link.order(plans.plan([]).batch)
    assert cuda.calls == [
        "compute records 1",
        "outs waits 1", "outs records 2", "copy out", "outs records 3",
        "ins waits 1", "ins records 4", "copy in", "ins records 5",
    ]  # fmt: skip
    link.close()
    assert copied == ["1: 1.0 1.0"]


def test_what_touches_the_same_blocks_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    cache = PagedKV(4, 1, 4, 1, 2, torch.float32, torch.device("cpu"))
    copies = SimpleNamespace(out=lambda *_: None, back=lambda *_: None)
    streams = streams_of(torch.device("cuda:1"))
    link = SwapLink(cache, HostPool(4, cache, False), streams, copies)
    monkeypatch.setattr(link, "_watched", SimpleNamespace(put=lambda _job: None))  # none is done
    plans = Driver(4, [])
    plans.outs = [(0, 0)]
    link.order(plans.plan([]).batch)  # events 1: compute, 2 and 3: the copies
    plans.ins = [(0, 2)]
    cuda.calls.clear()
    link.order(plans.plan([]).batch)  # 4, 5 and 6
    assert cuda.calls[:3] == ["compute records 4", "ins waits 4", "ins waits 3"]
    plans.outs = [(2, 3)]
    cuda.calls.clear()
    link.order(plans.plan([]).batch)  # 7, 8 and 9
    assert cuda.calls[:3] == ["compute records 7", "outs waits 7", "outs waits 6"]
    cuda.calls.clear()
    link.wait(0)
    assert not cuda.calls
    link.wait(2)
    assert cuda.calls == ["compute waits 3", "compute waits 6"]


@pytest.mark.parametrize("compress", [False, True])
def test_a_host_pool_is_pinned_whole_and_no_more(
    monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    asked: list[tuple[int, int, int]] = []
    statuses = iter((0, 2))

    def register(*arguments: int) -> int:
        asked.append(arguments)  # type: ignore[arg-type]
        return next(statuses)

    cudart = SimpleNamespace(cudaHostRegister=register)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    blocks = SimpleNamespace(is_cuda=True, shape=(9, 2, 2, 8, 1, 16), dtype=torch.bfloat16)
    block_bytes = 2 * 2 * 8 * 16 * 2
    cache: Any = SimpleNamespace(blocks=blocks, scales=None, block_bytes=block_bytes, block_size=8)
    pool = HostPool(5, cache, compress)
    assert asked == [(pool.rows.data_ptr(), 5 * pool.block_bytes, 0)]
    with pytest.raises(
        HostPoolError, match=r"does not pin .* \(error 2\): lower memory.host_bytes"
    ):
        HostPool(5, cache, compress)


def _raise(error: Exception) -> None:
    raise error

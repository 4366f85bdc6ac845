"""How products are timed on a GPU, with events that are told what to say."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from triton.errors import TritonError

from daemon.engine.cuda.meter import CudaMeter, ProductCall
from daemon.engine.cuda.product_implementations import Library

STATES, WEIGHT = torch.randn(3, 64).bfloat16(), torch.randn(8, 64).bfloat16()


@dataclass(frozen=True)
class FalseWay:
    """A way whose result is a function of the library's."""

    change: Callable[[torch.Tensor], torch.Tensor]
    name: str = "false"

    def __call__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return self.change(Library()(states, weight, bias))


def refused(_: torch.Tensor) -> torch.Tensor:
    raise TritonError("out of resource: shared memory")


def test_only_what_gives_the_librarys_result_is_usable() -> None:
    def usable(change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return CudaMeter().usable(FalseWay(change), STATES, WEIGHT, None)

    assert usable(lambda right: right) and usable(lambda right: right * 1.004)
    assert not usable(lambda right: right * 1.05)
    assert not usable(lambda right: right.index_fill(0, torch.tensor([2]), torch.nan))
    assert not usable(refused)


class Device:
    """A stream of sleeps and events that runs by itself, and a host that takes its time."""

    def __init__(self, host_cycles: int) -> None:
        self.host_cycles = host_cycles
        self.slept: list[int] = []
        self.queued = 0

    def event(self, enable_timing: bool) -> "Event":
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        """Nothing to do: the sleep before it says when it comes."""

    def query(self) -> bool:
        return self.device.slept[-1] < self.device.host_cycles * self.device.queued

    def synchronize(self) -> None:
        self.device.queued = 0

    def elapsed_time(self, _: "Event") -> float:
        return 6.0


def test_the_device_sleeps_until_all_calls_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(host_cycles=150_000)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "_sleep", device.slept.append, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def before() -> None:
        device.queued += 1

    calls = [ProductCall(Library(), STATES, WEIGHT, None, before)] * 4
    meter = CudaMeter()
    meter.seconds(calls[:1])
    device.slept.clear()
    device.queued = 0
    assert meter.seconds(calls) == pytest.approx(6e-3 / 4)
    assert device.slept == [4 * 200_000]

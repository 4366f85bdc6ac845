"""GPU figures through a made-up pynvml: present, partly supported, lost and back, and absent."""

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from daemon.protocol.control import GpuStatus
from daemon.runtime import gpus
from daemon.runtime.gpus import GpuReader, GpuWatch, together

FULL = GpuStatus("Fake 9000", 3 << 30, 8 << 30, 71.5, 250.0, 61, 37)
UUID, NONE = "GPU-11111111-2222", "GPU-none"


class FakeNvml(ModuleType):
    """Two cards; what is in `unsupported` is not answered, and while `lost` nothing is."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 - the library's names
        pass

    class NVMLError_NoPermission(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_InvalidArgument(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.unsupported: set[str] = set()
        self.lost = False
        self.num_open = self.num_opened = 0
        answers: dict[str, object] = {
            "Name": b"Fake 9000",
            "MemoryInfo": SimpleNamespace(used=3 << 30, total=8 << 30),
            "PowerUsage": 71_500,
            "EnforcedPowerLimit": 250_000,
            "UtilizationRates": SimpleNamespace(gpu=37),
            "Temperature": 61,
            "HandleByUUID": 0,
        }
        for name, answer in answers.items():
            setattr(self, f"nvmlDeviceGet{name}", self._question(name, answer))

    def _question(self, name: str, answer: object) -> Callable[..., object]:
        def asked(key: object, *_more: object) -> object:
            if self.lost or key == NONE:
                raise self.NVMLError("GPU is lost")
            if name in self.unsupported:
                raise self.NVMLError_NotSupported("Not Supported")
            return answer

        return asked

    def nvmlInit(self) -> None:  # noqa: N802
        if self.lost:
            raise self.NVMLError("Driver Not Loaded")
        self.num_open += 1
        self.num_opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(gpus, "INTERVAL_S", 0.01)
    monkeypatch.setattr(gpus, "REOPEN_S", 0.01)
    return fake


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(500):
        if happened():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_a_card_says_all_that_it_supports(nvml: FakeNvml) -> None:
    reader = GpuReader()
    assert reader.read(UUID) == FULL
    nvml.unsupported = {"PowerUsage", "EnforcedPowerLimit", "UtilizationRates", "MemoryInfo"}
    assert reader.read(UUID) == GpuStatus("Fake 9000", temperature_c=61)
    reader.close()
    assert nvml.num_open == 0


def test_a_lost_driver_is_no_figures_and_is_opened_again(nvml: FakeNvml) -> None:
    watch = GpuWatch([[UUID], []])
    watch.start()
    until(lambda: watch.latest == (FULL, None))
    nvml.lost = True
    until(lambda: watch.latest == (None, None))
    nvml.lost = False
    until(lambda: watch.latest == (FULL, None))
    watch.stop()
    assert nvml.num_opened == 2
    assert nvml.num_open == 0


def test_one_card_that_does_not_answer_leaves_the_others(nvml: FakeNvml) -> None:
    watch = GpuWatch([[NONE], [UUID]])
    watch.start()
    until(lambda: watch.latest == (None, FULL))
    watch.stop()
    assert nvml.num_opened == 1


def test_without_the_package_there_are_no_figures(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = GpuWatch([[UUID]])
    watch.start()
    watch.stop()
    assert watch.latest == (None,)


def test_a_driver_is_not_touched_where_no_gpu_is_used(nvml: FakeNvml) -> None:
    watch = GpuWatch([[]])
    watch.start()
    watch.stop()
    assert nvml.num_opened == 0


def test_the_cards_of_an_instance_are_shown_as_one(nvml: FakeNvml) -> None:
    watch = GpuWatch([[UUID, UUID], [UUID, NONE]])
    watch.start()
    both = GpuStatus("2 x Fake 9000", 6 << 30, 16 << 30, 143.0, 500.0, 61, 37)
    until(lambda: watch.latest == (both, None))
    watch.stop()
    other = GpuStatus("Fake 1", 1 << 30, temperature_c=70, busy_percent=62)
    assert together([FULL, other]) == GpuStatus(
        "Fake 9000 + Fake 1", 4 << 30, temperature_c=70, busy_percent=50
    )

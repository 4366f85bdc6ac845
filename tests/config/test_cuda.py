"""CUDA devices are asked for before anything is loaded, of the driver and of a driver that lies."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from daemon.config import cuda
from daemon.config.card_links import CardLink, CardSeat
from daemon.config.cuda import (
    Card,
    DeviceError,
    Devices,
    ask_for,
    check_devices,
    cuda_devices,
    missing,
)
from tests.config.driver import HAS_DRIVER, build_driver, devices_seen_by, pretend, torch_package

Cards = Callable[..., None]
A = "86:24576:24000:0:NVIDIA A"
B = "75:8192:8000:0:NVIDIA B"
C = "90:81920:1024:0:NVIDIA C"
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
CARD_A = Card("NVIDIA A", UUID.format(0), (8, 6), 24576 << 20, 24000 << 20)
CARD_B = Card("NVIDIA B", UUID.format(1), (7, 5), 8192 << 20, 8000 << 20)
CARD_C = Card("NVIDIA C", UUID.format(2), (9, 0), 81920 << 20, 1024 << 20)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Makes this a machine with such cards."""
    return partial(pretend, monkeypatch, library)


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_without_a_driver_no_cuda_device_can_be_used() -> None:
    found = cuda_devices()
    said = "cuda:0, cuda:1 cannot be used: there is no NVIDIA driver here (libcuda.so.1)"
    assert missing(["cuda:1", "cpu", "cuda:0", "cuda:0"], found) == [said]
    with pytest.raises(DeviceError, match=r"cuda:0 cannot be used: there is no NVIDIA driver"):
        check_devices(["cuda:0"], found)
    check_devices(["cpu"], found)


def test_for_a_cpu_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Devices((CARD_A,))
    monkeypatch.setattr(cuda, "cuda_devices", lambda: found)
    assert ask_for(["cpu", "cpu"]) == Devices()
    assert ask_for(["cpu", "cuda:0"]) == ask_for([]) == found


def test_the_driver_s_count_is_the_bound(driver: Cards) -> None:
    driver(A, B)
    assert missing(["cuda:0", "cuda:1"], cuda_devices()) == []
    assert missing(["cuda:1", "cuda:2", "cuda:7"], cuda_devices()) == [
        "cuda:2 is not there: this machine has cuda:0 to cuda:1",
        "cuda:7 is not there: this machine has cuda:0 to cuda:1",
    ]
    driver(A)
    said = "cuda:1 is not there: this machine has cuda:0 alone"
    assert missing(["cuda:1"], cuda_devices()) == [said]


def test_each_card_is_described_by_its_driver(driver: Cards) -> None:
    driver(A, B, C)
    found = cuda_devices()
    assert msgspec.structs.replace(found, links=()) == Devices(
        (CARD_A, CARD_B, CARD_C), torch_cuda=(13, 0)
    )


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("2,0", (CARD_C, CARD_A)),
        (UUID.format(1), (CARD_B,)),
        (f"{UUID.format(2)},1", (CARD_C, CARD_B)),
        ("1,7,0", (CARD_B,)),  # the driver counts to the first that is not there
    ],
)
def test_what_is_visible_alone_is_described_with_its_own_memory(
    driver: Cards, visible: str, cards: tuple[Card, ...]
) -> None:
    driver(A, B, C, CUDA_VISIBLE_DEVICES=visible)
    assert cuda_devices().cards == cards


def test_figures_are_of_the_card_behind_a_device() -> None:
    found = Devices((CARD_B, msgspec.structs.replace(CARD_A, uuid="")))
    assert found.uuid_of("cuda:0") == CARD_B.uuid
    assert [found.uuid_of(device) for device in ("cpu", "cuda:1", "cuda:2")] == ["", "", ""]


@pytest.mark.parametrize(
    ("mode", "taken"),
    [
        (0, ""),
        (2, "its compute mode lets no program use it"),
        (3, ""),
        (4, "another process has it to itself (its compute mode is exclusive)"),
    ],
)
def test_a_card_that_others_keep_is_known(driver: Cards, mode: int, taken: str) -> None:
    driver(f"86:24576:24000:{mode}:NVIDIA A")
    assert cuda_devices().cards[0].taken == taken


def test_without_nvml_free_memory_is_unknown(driver: Cards) -> None:
    driver(A, NVML_STATUS="9")
    assert cuda_devices().cards == (msgspec.structs.replace(CARD_A, uuid="", free_bytes=None),)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "the NVIDIA driver shows no GPU to this process"),
        ({"DRIVER_STATUS": "100"}, "the NVIDIA driver shows no GPU to this process"),
        ({"DRIVER_STATUS": "999"}, "the NVIDIA driver failed (error 999)"),
        ({"DRIVER_CRASHES": "1"}, "the process that asks the NVIDIA driver failed"),
        (
            {"DRIVER_CARDS": A, "CUDA_VISIBLE_DEVICES": ""},
            "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES='')",
        ),
    ],
)
def test_a_driver_without_gpus_says_why(
    driver: Cards, settings: dict[str, str], fault: str
) -> None:
    driver(**settings)
    assert cuda_devices() == Devices(fault=fault)


def test_a_driver_that_does_not_answer_is_left(
    driver: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(A, DRIVER_HANGS="1")
    monkeypatch.setattr(cuda, "TIMEOUT_S", 0.1)
    assert cuda_devices() == Devices(fault="the NVIDIA driver did not answer in 0.1 s")


@pytest.mark.parametrize(
    ("build", "torch_cuda", "fault"),
    [
        ("12.8", [12, 8], ""),
        ("13.0", [13, 0], ""),
        (None, None, "torch 2.9.0+cpu is installed, which is built without CUDA: `"),
    ],
)
def test_torch_s_build_is_known_unseen(
    tmp_path: Path, library: Path, build: str | None, torch_cuda: list[int] | None, fault: str
) -> None:
    folder = torch_package(tmp_path, build)
    found = msgspec.json.decode(
        devices_seen_by(
            {
                "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
                "LD_LIBRARY_PATH": str(library),
                "DRIVER_CARDS": A,
            }
        )
    )
    assert found["torch_cuda"] == torch_cuda
    assert found["fault"].startswith(fault) and bool(found["fault"]) == bool(fault)
    if fault:
        assert "make" in found["fault"] and "TORCH=cuda` replaces it" in found["fault"]
        assert found["fault"].endswith("; this machine has NVIDIA A")


@pytest.mark.parametrize("nvlinks", [0, 4])
def test_the_links_between_cards_are_asked_for(driver: Cards, nvlinks: int) -> None:
    driver(A, C, A, DRIVER_CLOCK="9751000", DRIVER_BUS="384", DRIVER_NVLINKS=str(nvlinks))
    found = cuda_devices()
    assert {card.seat for card in found.cards} == {CardSeat(936.096e9, 16 * 1.97e9)}
    path, rate = ("NV4", 4 * 25e9) if nvlinks else ("PHB", 16 * 1.97e9)
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert found.links == tuple(CardLink(*pair, path, rate, bool(nvlinks)) for pair in pairs)

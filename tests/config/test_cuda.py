"""CUDA devices are asked for before anything is loaded, of the driver and of a driver that lies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config import cuda
from daemon.config.cuda import DeviceError, Devices, check_devices, cuda_devices, missing

DRIVER = """
int cuInit(unsigned flags) { return %d; }
int cuDeviceGetCount(int *count) { *count = %d; return 0; }
"""
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes a library that answers as the driver of so many GPUs, or fails."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def make(status: int, count: int) -> None:
        source = tmp_path / "driver.c"
        source.write_text(DRIVER % (status, count), encoding="ascii")
        library = tmp_path / cuda.LIBRARY
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return make


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_without_a_driver_no_cuda_device_can_be_used() -> None:
    said = "cuda:0, cuda:1 cannot be used: there is no NVIDIA driver here (libcuda.so.1)"
    assert missing(["cuda:1", "cpu", "cuda:0", "cuda:0"]) == [said]
    with pytest.raises(DeviceError, match=r"cuda:0 cannot be used: there is no NVIDIA driver"):
        check_devices(["cuda:0"])


def test_a_cpu_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: pytest.fail("asked"))
    check_devices(["cpu", "cpu"])


def test_the_driver_s_count_is_the_bound(
    driver: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "torch_fault", lambda: "")
    driver(0, 2)
    assert missing(["cuda:0", "cuda:1"]) == []
    assert missing(["cuda:1", "cuda:2", "cuda:7"]) == [
        "cuda:2 is not there: this machine has cuda:0 to cuda:1",
        "cuda:7 is not there: this machine has cuda:0 to cuda:1",
    ]
    driver(0, 1)
    assert missing(["cuda:1"]) == ["cuda:1 is not there: this machine has cuda:0 alone"]


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (0, "the NVIDIA driver shows no GPU to this process"),
        (100, "the NVIDIA driver shows no GPU to this process"),
        (999, "the NVIDIA driver failed (error 999)"),
    ],
)
def test_a_driver_without_gpus_says_why(
    driver: Callable[[int, int], None], status: int, fault: str
) -> None:
    driver(status, 0)
    assert cuda_devices() == Devices(0, fault)


def test_a_driver_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "TIMEOUT_S", 0.0)
    assert cuda_devices() == Devices(0, "the NVIDIA driver did not answer in 0 s")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n", "torch 2.9.0+cpu is installed"),
        ("__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\n", ""),
        ("nothing", ""),
    ],
)
def test_torch_without_cuda_is_known_unseen(tmp_path: Path, text: str, fault: str) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="ascii")
    (package / "version.py").write_text(text, encoding="ascii")
    code = "from daemon.config.cuda import torch_fault; print(torch_fault(), end='')"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.startswith(fault) and bool(done.stdout) == bool(fault)

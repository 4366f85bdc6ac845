"""Which CUDA devices there are: `python -m daemon.config.cuda` asks the driver.

It is asked in a process of its own, which ends: whoever has once asked it holds files and memory of
every GPU. The driver counts as torch will: CUDA_VISIBLE_DEVICES and slices of GPUs included.
"""

import ctypes
import importlib.util
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

LIBRARY = "libcuda.so.1"
TIMEOUT_S = 120.0
"""Without persistence a driver takes seconds for each GPU to begin."""
_NO_DEVICE = 100
_WITHOUT_CUDA = re.compile(r"^cuda\b.*= *None *$", re.MULTILINE)
_VERSION = re.compile(r"^__version__ *= *['\"](.+)['\"]", re.MULTILINE)


class Devices(msgspec.Struct, frozen=True):
    """How many there are, cuda:0 and on, and why there is none."""

    count: int = 0
    fault: str = ""


class DeviceError(Exception):
    """A device is not there; the message names each that is missed, and says what there is."""


def check_devices(devices: Collection[str]) -> None:
    """Raise DeviceError unless every one of `devices` ("cpu", "cuda:1") is there; others are asked
    for nothing.
    """
    faults = missing(devices)
    if faults:
        raise DeviceError("; ".join(faults))


def missing(devices: Collection[str]) -> list[str]:
    """A sentence for each device that is not there."""
    wanted = sorted({device for device in devices if device.startswith("cuda:")})
    if not wanted:
        return []
    found = cuda_devices()
    if not found.count:
        return [f"{', '.join(wanted)} cannot be used: {found.fault}"]
    beyond = [one for one in wanted if int(one.partition(":")[2]) >= found.count]
    there = "cuda:0 alone" if found.count == 1 else f"cuda:0 to cuda:{found.count - 1}"
    return [f"{one} is not there: this machine has {there}" for one in beyond]


def cuda_devices() -> Devices:
    """What this process's workers would find; blocks for a moment, or for seconds."""
    command = [sys.executable, "-m", "daemon.config.cuda"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        found = msgspec.json.decode(done.stdout, type=Devices)
    except subprocess.TimeoutExpired:
        return Devices(0, f"the NVIDIA driver did not answer in {TIMEOUT_S:g} s")
    except (OSError, msgspec.MsgspecError):
        return Devices(0, "the process that asks the NVIDIA driver failed")
    if found.count and (fault := torch_fault()):
        return Devices(0, fault)
    return found


def torch_fault() -> str:
    """Why torch as installed would not see a GPU; read without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    if not _WITHOUT_CUDA.search(text):
        return ""
    version = _VERSION.search(text)
    return (
        f"torch {version[1] if version else ''} is installed, which is built without CUDA; "
        "`make venv TORCH=cuda`, or `make install TORCH=cuda` for the service, replaces it"
    )


def _ask() -> Devices:
    """The driver's own answer."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return Devices(0, f"there is no NVIDIA driver here ({LIBRARY})")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (not status and not count.value):
        return Devices(0, "the NVIDIA driver shows no GPU to this process")
    if status:
        return Devices(0, f"the NVIDIA driver failed (error {status})")
    return Devices(count.value)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_ask()))

"""The CUDA devices of this machine: `python -m daemon.config.cuda` asks the driver.

It does so in a process of its own, which ends: a process that has asked the driver keeps files and
memory of every GPU. The driver numbers devices as torch will: CUDA_VISIBLE_DEVICES and slices of
GPUs included. Free memory comes from NVML by UUID, since NVML numbers devices otherwise; it needs
no CUDA context, which would itself take memory.
"""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Collection
from ctypes.util import find_library
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.config.card_links import CardLink, CardSeat, ask_links, ask_seat

LIBRARY = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
TIMEOUT_S = 120.0
"""Without persistence mode a driver takes seconds to begin with each GPU."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER_IS_HERE = Path("/proc/driver/nvidia"), Path("/dev/dxg")
_NO_DEVICE = 100
_UNAVAILABLE = 46
_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20
"""The driver's numbers of a device's attributes."""
_PROHIBITED, _EXCLUSIVE = 2, 3
_CUDA = re.compile(r"^cuda\b.*= *(?:None|['\"](\d+)\.(\d+).*['\"]) *$", re.MULTILINE)
_VERSION = re.compile(r"^__version__ *= *['\"](.+)['\"]", re.MULTILINE)


class Card(msgspec.Struct, frozen=True):
    """One CUDA device, as its driver describes it; a slice of a GPU is one, too."""

    name: str = ""
    uuid: str = ""  # as NVML knows it; empty: it cannot be asked
    capability: tuple[int, int] = (0, 0)  # of computing: major, minor
    total_bytes: int = 0
    free_bytes: int | None = None  # None: NVML cannot be asked
    taken: str = ""  # why it cannot be used now; empty: it can
    seat: CardSeat = CardSeat()


class Devices(msgspec.Struct, frozen=True):
    """cuda:0 and on, or why there is none that torch could use."""

    cards: tuple[Card, ...] = ()
    fault: str = ""
    torch_cuda: tuple[int, int] | None = None  # the version that torch is built with, if known
    links: tuple[CardLink, ...] = ()  # between all pairs of cards
    nccl: bool = True  # whether torch can sum over several cards, as far as that is known

    def uuid_of(self, device: str) -> str:
        """The UUID by which NVML knows a device; empty for others, such as the CPU."""
        kind, _, number = device.partition(":")
        known = kind == "cuda" and int(number) < len(self.cards)
        return self.cards[int(number)].uuid if known else ""


class DeviceError(Exception):
    """Devices are missing; the message names them, and those that exist."""


def ask_for(devices: Collection[str]) -> Devices:
    """Ask the driver, if a GPU is among `devices` ("cpu", "cuda:1") or none is named and one must
    be found. For a CPU alone there is nothing to ask.
    """
    named = bool(devices) and not any(device.startswith("cuda:") for device in devices)
    return Devices() if named else cuda_devices()


def likely_kind(devices: Collection[str]) -> str:
    """The kind of device that will serve, before the driver is asked: "cpu" or "cuda"."""
    for device in devices:
        return device.partition(":")[0]
    return "cuda" if any(path.exists() for path in _DRIVER_IS_HERE) else "cpu"


def check_devices(devices: Collection[str], found: Devices) -> None:
    """Raise DeviceError unless every one of `devices` is there."""
    faults = missing(devices, found)
    if faults:
        raise DeviceError("; ".join(faults))


def missing(devices: Collection[str], found: Devices) -> list[str]:
    """A sentence for each device that is not there."""
    wanted = sorted({device for device in devices if device.startswith("cuda:")})
    if wanted and found.fault:
        return [f"{', '.join(wanted)} cannot be used: {found.fault}"]
    count = len(found.cards)
    beyond = [device for device in wanted if int(device.partition(":")[2]) >= count]
    there = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
    return [f"{device} is not there: this machine has {there}" for device in beyond]


def cuda_devices() -> Devices:
    """The devices that this process's workers would find; blocks for a moment, or for seconds."""
    command = [sys.executable, "-m", "daemon.config.cuda"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        found = msgspec.json.decode(done.stdout, type=Devices)
    except subprocess.TimeoutExpired:
        return Devices(fault=f"the NVIDIA driver did not answer in {TIMEOUT_S:g} s")
    except (OSError, msgspec.MsgspecError):
        return Devices(fault="the process that asks the NVIDIA driver failed")
    if found.fault:
        return found
    torch = installed_torch()
    if torch.fault:
        names = ", ".join(card.name for card in found.cards)
        fault = f"{torch.fault}; this machine has {names}"
        return msgspec.structs.replace(found, fault=fault)
    return msgspec.structs.replace(found, torch_cuda=torch.cuda, nccl=torch.nccl)


class Torch(NamedTuple):
    """The installed torch's support of GPUs."""

    cuda: tuple[int, int] | None = None  # that it is built with, if known
    fault: str = ""  # why it would not see a GPU
    nccl: bool = True  # whether NCCL lies where builds of torch have it


def installed_torch() -> Torch:
    """torch as its own version file describes it; it is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Torch(fault="torch is not installed")
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return Torch()
    cuda, version = _CUDA.search(text), _VERSION.search(text)
    if cuda is None:
        return Torch()
    if cuda[1]:
        return Torch((int(cuda[1]), int(cuda[2])), nccl=_has_nccl(Path(spec.origin).parent))
    # A clone has its environment beside its Makefile; any other one was installed.
    here = (Path(sys.prefix).parent / "Makefile").exists()
    command = "make venv TORCH=cuda" if here else "sudo make install TORCH=cuda"
    return Torch(
        fault=f"torch {version[1] if version else ''} is installed, which is built without CUDA: "
        f"`{command}` replaces it"
    )


def _has_nccl(torch: Path) -> bool:
    """Whether NCCL lies beside torch's folder, in it, or where the system has its libraries."""
    near = (torch / "lib", *torch.parent.glob("nvidia/*/lib"))
    found = (library for folder in near for library in folder.glob("libnccl*"))
    return next(found, None) is not None or find_library("nccl") is not None


def _ask() -> Devices:
    """The driver's own answer."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return Devices(fault=f"there is no NVIDIA driver here ({LIBRARY})")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (not status and not count.value):
        visible = os.environ.get(VISIBLE)
        why = "" if visible is None else f" ({VISIBLE}={visible!r})"
        return Devices(fault=f"the NVIDIA driver shows no GPU to this process{why}")
    if status:
        return Devices(fault=f"the NVIDIA driver failed (error {status})")
    nvml = _nvml()
    cards = tuple(_card(driver, nvml, index) for index in range(count.value))
    seats = [card.seat for card in cards]
    return Devices(cards, links=ask_links(driver, nvml, [card.uuid for card in cards], seats))


def _card(driver: ctypes.CDLL, nvml: ctypes.CDLL | None, index: int) -> Card:
    """One device, as the driver and NVML describe it."""
    device, name, raw = ctypes.c_int(), ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    total = ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    number = uuid.UUID(bytes=bytes(raw))
    whole, part = f"GPU-{number}", f"MIG-{number}"
    memory, known = _memory(nvml, whole), whole
    if memory is None:
        memory, known = _memory(nvml, part), part
    return Card(
        name=name.value.decode(errors="replace"),
        uuid=known if memory else "",
        capability=(_attribute(driver, device, _MAJOR), _attribute(driver, device, _MINOR)),
        total_bytes=memory[0] if memory else total.value,
        free_bytes=memory[1] if memory else None,
        taken=_taken(driver, device),
        seat=ask_seat(driver, nvml, device.value, known if memory else ""),
    )


def _attribute(driver: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _taken(driver: ctypes.CDLL, device: ctypes.c_int) -> str:
    """Why the compute mode keeps programs away, if it does. Whether an exclusive device is in use
    shows only by trying it.
    """
    mode = _attribute(driver, device, _COMPUTE_MODE)
    if mode == _PROHIBITED:
        return "its compute mode lets no program use it"
    if mode == _EXCLUSIVE:
        context = ctypes.c_void_p()
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == _UNAVAILABLE:
            return "another process has it to itself (its compute mode is exclusive)"
    return ""


def _nvml() -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return None
    return None if nvml.nvmlInit_v2() else nvml


def _memory(nvml: ctypes.CDLL | None, identity: str) -> tuple[int, int] | None:
    """Total and free bytes; None for a device that NVML does not know."""
    if nvml is None:
        return None
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
    if nvml.nvmlDeviceGetHandleByUUID(identity.encode(), ctypes.byref(handle)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return memory[0], memory[1]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_ask()))

"""How a machine's cards are joined to each other and to its memory, as driver and NVML tell it.

What a library does not know, or an old one has no function for, stays unknown: 0, -1 or empty.
"""

import ctypes
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import msgspec

PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's levels of the nearest thing that two cards have in common, in the words of `nvidia-smi
topo`: one PCIe switch, several, a host bridge, a NUMA node, or only the processors' own link.
"""
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9, 6: 50e9, 7: 100e9}
"""One link in one direction, by NVML's number of its version."""
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
_MOST_NVLINKS = 18
_NVLINK_STATUS, _READ_STATUS, _OK = 2, 0, 0
_MEMORY_CLOCK_KHZ, _BUS_BITS = 36, 37
_SYS = Path("/sys/bus/pci/devices")


class CardSeat(msgspec.Struct, frozen=True):
    """A card's own way to memory: its bandwidth there, its PCIe link, and its NUMA node."""

    memory_bytes_per_s: float = 0.0
    pcie_bytes_per_s: float = 0.0  # one direction
    numa_node: int = -1


class CardLink(msgspec.Struct, frozen=True):
    """The link between two cards, by their numbers."""

    first: int
    other: int
    path: str  # of PATHS, or NV and the number of links
    bytes_per_s: float = 0.0  # one direction
    peers: bool = True  # each may read the other's memory; else copies go over the host's


def ask_seat(driver: ctypes.CDLL, nvml: ctypes.CDLL | None, device: int, uuid: str) -> CardSeat:
    """A card's seat; `device` is the driver's number of it."""
    clock_khz = _attribute(driver, device, _MEMORY_CLOCK_KHZ)
    # Two transfers a clock, whatever the memory: the clock is stated that way.
    bandwidth = 2e3 * clock_khz * _attribute(driver, device, _BUS_BITS) / 8
    handle = _handle(nvml, uuid)
    version = _number(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    lanes = _number(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    pcie = _LANE_BYTES_PER_S.get(version, 0.0) * lanes
    return CardSeat(bandwidth, pcie, _numa_node(driver, device))


def ask_links(
    driver: ctypes.CDLL, nvml: ctypes.CDLL | None, uuids: Sequence[str], seats: Sequence[CardSeat]
) -> tuple[CardLink, ...]:
    """The links between all pairs of cards."""
    handles = [_handle(nvml, uuid) for uuid in uuids]
    links = [_nvlinks(nvml, handle) for handle in handles]
    found = []
    for first, other in combinations(range(len(uuids)), 2):
        ends = handles[first], handles[other]
        peers = _peers(driver, first, other)
        if (
            links[first][0]
            and _number(nvml, "nvmlDeviceGetP2PStatus", *ends, _NVLINK_STATUS) == _OK
        ):
            number, rate = min(links[first], links[other])
            found.append(CardLink(first, other, f"NV{number}", number * rate, peers))
            continue
        path = PATHS.get(_number(nvml, "nvmlDeviceGetTopologyCommonAncestor", *ends), "SYS")
        rate = min(seats[first].pcie_bytes_per_s, seats[other].pcie_bytes_per_s)
        found.append(CardLink(first, other, path, rate, peers))
    return tuple(found)


def _nvlinks(nvml: ctypes.CDLL | None, handle: ctypes.c_void_p | None) -> tuple[int, float]:
    """How many links of a card are up, and what one carries."""
    links = [ctypes.c_uint(number) for number in range(_MOST_NVLINKS)]
    up = [link for link in links if _number(nvml, "nvmlDeviceGetNvLinkState", handle, link) == 1]
    if not up:
        return 0, 0.0
    version = _number(nvml, "nvmlDeviceGetNvLinkVersion", handle, up[0])
    return len(up), NVLINK_BYTES_PER_S.get(version, NVLINK_BYTES_PER_S[3])


def _peers(driver: ctypes.CDLL, first: int, other: int) -> bool:
    can = ctypes.c_int(0)
    try:
        failed = driver.cuDeviceCanAccessPeer(ctypes.byref(can), first, other)
    except AttributeError:
        return False
    return not failed and bool(can.value)


def _numa_node(driver: ctypes.CDLL, device: int) -> int:
    name = ctypes.create_string_buffer(32)
    try:
        if driver.cuDeviceGetPCIBusId(name, len(name), device):
            return -1
        return int((_SYS / name.value.decode().lower() / "numa_node").read_text())
    except (AttributeError, OSError, ValueError):
        return -1


def _attribute(driver: ctypes.CDLL, device: int, number: int) -> int:
    value = ctypes.c_int(0)
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _handle(nvml: ctypes.CDLL | None, uuid: str) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    if nvml is None or not uuid:
        return None
    failed = nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    return None if failed else handle


def _number(nvml: ctypes.CDLL | None, function: str, *asked: ctypes.c_void_p | object) -> int:
    """The number that a function of NVML writes to its last argument; -1: it cannot be asked."""
    value = ctypes.c_uint(0)
    if nvml is None or None in asked:
        return -1
    try:
        failed = getattr(nvml, function)(*asked, ctypes.byref(value))
    except AttributeError:
        return -1
    return -1 if failed else value.value

"""What this machine has: available RAM, and which card is behind a device."""

import os
from collections.abc import Mapping
from pathlib import Path

from daemon.config.cgroup import ROOT, limits


def available_ram_bytes(root: Path = ROOT) -> int:
    """RAM that can be taken without swapping: of the machine, and of every control group around."""
    available = _meminfo_bytes(root, "MemAvailable")
    for folder, text in limits("memory.max", root):
        if text.isdigit():
            available = min(available, int(text) - _number(folder / "memory.current"))
    return max(available, 0)


def card_of(device: str, environment: Mapping[str, str]) -> int | str | None:
    """The card behind a device ("cuda:1"), by index or UUID; None for one that is no GPU.

    CUDA_VISIBLE_DEVICES is followed. Where cards differ, CUDA counts them in NVML's order only
    with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        return None
    index = int(number or "0")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return index
    cards = [card.strip() for card in visible.split(",")]
    if index >= len(cards) or not cards[index]:
        return None
    return int(cards[index]) if cards[index].isdigit() else cards[index]


def _meminfo_bytes(root: Path, name: str) -> int:
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0

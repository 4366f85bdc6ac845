"""The RAM of this machine."""

import os
from pathlib import Path

from daemon.config.cgroup import ROOT, limits


def available_ram_bytes(root: Path = ROOT) -> int:
    """RAM available without swapping, in the machine and in every control group of this process."""
    available = _meminfo_bytes(root, "MemAvailable")
    for folder, text in limits("memory.max", root):
        if text.isdigit():
            available = min(available, int(text) - _number(folder / "memory.current"))
    return max(available, 0)


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

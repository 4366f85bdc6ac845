"""The RAM of this machine: how much is available, and how fast it is."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from daemon.config.cgroup import ROOT, limits

_COPIED_BYTES = 32 << 20
_TIMES = 3


def available_ram_bytes(root: Path = ROOT) -> int:
    """RAM available without swapping, in the machine and in every control group of this process."""
    available = _meminfo_bytes(root, "MemAvailable")
    for folder, text in limits("memory.max", root):
        if text.isdigit():
            available = min(available, int(text) - _number(folder / "memory.current"))
    return max(available, 0)


def measured_ram_bytes_per_s(num_threads: int) -> float:
    """The rate at which so many threads read and write together, while each copies a few times:
    tens of milliseconds. The best of them counts: other programs take their share.
    """
    parts = [(np.ones(_COPIED_BYTES // 8), np.ones(_COPIED_BYTES // 8)) for _ in range(num_threads)]
    took_s = []
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(_TIMES):
            begun_s = time.perf_counter()
            list(pool.map(lambda part: np.copyto(*part), parts))
            took_s.append(time.perf_counter() - begun_s)
    return 2 * _COPIED_BYTES * num_threads / min(took_s)


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

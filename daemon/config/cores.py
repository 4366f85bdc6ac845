"""The processor cores that this process may use: of /sys, its affinity mask and its control group.

A core here is a physical one: hardware threads that share it (SMT) count as one core.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from daemon.config.cgroup import ROOT, limits


class CpuCore(msgspec.Struct, frozen=True):
    """One core: the hardware threads that may be used of it, and the NUMA node of its memory."""

    cpus: tuple[int, ...]  # as the kernel numbers them, in order
    node: int = 0


class Cores(msgspec.Struct, frozen=True):
    """All cores that may be used, and how much of them at a time."""

    cores: tuple[CpuCore, ...]  # in the order of their nodes, then of their numbers
    quota: float = 0.0  # processors' worth of time that the control group grants; 0: no limit

    @property
    def cpus(self) -> tuple[int, ...]:
        """All hardware threads, in order."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def granted(self) -> int:
        """How many threads can compute at a time, one to a core: at least 1."""
        whole = int(self.quota) if self.quota else len(self.cores)
        return max(1, min(len(self.cores), whole))


def read_cores(root: Path = ROOT, allowed: Iterable[int] | None = None) -> Cores:
    """The cores below `root`, of the CPUs in `allowed`: by default the process's affinity mask.

    Where /sys does not say how CPUs belong together, each is a core of its own, on one node.
    """
    left = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes = _nodes(root)
    found = []
    while left:
        together = _siblings(root, left[0])
        cpus = tuple(cpu for cpu in left if cpu in together)
        left = [cpu for cpu in left if cpu not in together]
        found.append(CpuCore(cpus, nodes.get(cpus[0], 0)))
    return Cores(tuple(sorted(found, key=lambda core: (core.node, core.cpus))), _quota(root))


def parse_cpus(text: str) -> frozenset[int]:
    """The kernel's lists of CPUs, such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def written_ranges(numbers: Iterable[int]) -> str:
    """Numbers as the kernel lists CPUs: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The CPUs of the core that `cpu` belongs to, itself among them."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second: kernels before 5.4
        try:
            return parse_cpus((folder / name).read_text(encoding="ascii")) | {cpu}
        except (OSError, ValueError):
            continue
    return frozenset({cpu})


def _nodes(root: Path) -> dict[int, int]:
    """The NUMA node of each CPU; nothing where the kernel knows none."""
    found = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            number = int(folder.name.removeprefix("node"))
            cpus = parse_cpus((folder / "cpulist").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        found.update(dict.fromkeys(cpus, number))
    return found


def _quota(root: Path) -> float:
    """The smallest quota of the control groups around this process; 0: none."""
    granted = []
    for _, text in limits("cpu.max", root):
        try:
            quota, period = text.split()
            if quota != "max":
                granted.append(int(quota) / int(period))
        except (ValueError, ZeroDivisionError):
            continue
    return min(granted, default=0.0)

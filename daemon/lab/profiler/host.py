"""The host's own speed, for copies and dense products, roughly; and other processes' use of it."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_COPIED_BYTES = 128 << 20  # beyond any cache
_REPEATS = 5
_MATRIX = 1536


def copy_bytes_per_s(block_bytes: int) -> float:
    """Bytes per second of copying whole blocks in random order between two buffers of
    host memory.
    """
    num_blocks = max(2, _COPIED_BYTES // max(1, block_bytes))
    source = np.ones((num_blocks, block_bytes), np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(0).permutation(num_blocks)

    def copy() -> None:
        for place, block in enumerate(order):
            target[place] = source[block]

    return source.nbytes / _fastest_s(copy)


def dense_flops() -> float:
    """Floating-point operations per second of a float32 product: about the peak of all cores.

    numpy's BLAS computes it, not the engine's kernels, so it is a denominator for MFU and no limit.
    """
    left = np.ones((_MATRIX, _MATRIX), np.float32)
    right = np.ones_like(left)
    product = np.empty_like(left)
    return 2.0 * _MATRIX**3 / _fastest_s(lambda: np.matmul(left, right, out=product))


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of processor time up to a moment, on the observed cores."""

    at_s: float
    busy_s: float  # of all processes, other virtual machines' steal time included
    own_s: float  # of the given processes

    def used_by_others(self, before: "CpuTimes", num_cpus: int) -> float:
        """The share of the cores that others used since `before`: 0..1."""
        elapsed_s = (self.at_s - before.at_s) * max(1, num_cpus)
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s)
        return min(1.0, max(0.0, others_s / elapsed_s)) if elapsed_s > 0.0 else 0.0


def cpu_times(cpus: Collection[int], pids: Collection[int], proc: Path = Path("/proc")) -> CpuTimes:
    """The current times of these CPUs and processes; zeros where the kernel does not count."""
    second = os.sysconf("SC_CLK_TCK")
    busy = own = 0
    names = {f"cpu{cpu}" for cpu in cpus}
    try:
        for line in (proc / "stat").read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name in names:
                user, nice, system, _idle, _io_wait, irq, soft_irq, stolen = map(int, ticks[:8])
                busy += user + nice + system + irq + soft_irq + stolen
        for pid in pids:
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            own += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    except (OSError, ValueError):
        busy = own = 0
    return CpuTimes(time.monotonic(), busy / second, own / second)


def _fastest_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)

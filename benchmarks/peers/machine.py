"""What the processors did: in all, for one server's processes, and for everybody else."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FEATURES = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve"),
)
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7


@dataclass(frozen=True)
class CpuUse:
    """Processors kept busy over a stretch of time, by whom; 1.0 is one processor, all the time."""

    wall_s: float
    server: float
    load: float
    others: float
    steal: float


def process_tree(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return found


def tree_cpu_s(pid: int) -> float:
    """Processor seconds that a living process tree has used so far."""
    ticks = 0
    for member in process_tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def machine_cpu_s() -> tuple[float, float]:
    """Processor seconds that the whole machine was busy since boot, and those stolen from it."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(ticks[i] for i in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL))
    return busy / TICKS_PER_S, ticks[_STEAL] / TICKS_PER_S


class CpuMeter:
    """Splits the machine's work since it was made into the server's, this process's and others'."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._start = self._sample()

    def _sample(self) -> tuple[float, float, float, float, float]:
        busy_s, steal_s = machine_cpu_s()
        return time.monotonic(), busy_s, steal_s, tree_cpu_s(self._pid), time.process_time()

    def read(self) -> CpuUse:
        """The shares up to now."""
        pairs = zip(self._sample(), self._start, strict=True)
        wall_s, busy_s, steal_s, server_s, load_s = (now - before for now, before in pairs)
        others_s = max(0.0, busy_s - server_s - load_s)
        shares = (round(used / wall_s, 3) for used in (server_s, load_s, others_s, steal_s))
        return CpuUse(round(wall_s, 3), *shares)


def wait_until_quiet(limit: float, patience_s: float, window_s: float = 1.2) -> float:
    """Wait until the machine uses less than `limit` processors; say what it used at the end."""
    deadline = time.monotonic() + patience_s
    while True:
        busy_s, started = machine_cpu_s()[0], time.monotonic()
        time.sleep(window_s)
        used = (machine_cpu_s()[0] - busy_s) / (time.monotonic() - started)
        if used < limit or time.monotonic() >= deadline:
            return used


def vectors() -> str:
    """The widest vectors that the processors have, by their name in /proc/cpuinfo."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return next((one for one in ("avx512f", "avx2", "asimd") if one in flags), "none known")


def features() -> str:
    """Those features of the processors that matrix products are written for, by their names."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return " ".join(name for name in FEATURES if name in flags)


def describe() -> dict[str, str | int | None]:
    """The machine in a few words, for whoever reads the results later."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "features": features(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }

"""What this machine has: RAM and GPU memory, read without loading a GPU library."""

import os
import shutil
import subprocess
from pathlib import Path

_QUERY = "--query-gpu=memory.total,memory.free"
_MIB = 1 << 20


def available_ram_bytes() -> int:
    """RAM that can be taken without swapping, cgroup limits included."""
    available = _meminfo_bytes("MemAvailable")
    limit = _cgroup_number("memory.max")
    if limit is None:
        return available
    return max(min(available, limit - (_cgroup_number("memory.current") or 0)), 0)


def gpu_memory_bytes(index: int) -> tuple[int, int] | None:
    """Total and free bytes of a GPU, as the driver's own tool says; None if it cannot be asked."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--id={index}", _QUERY, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        total, free = done.stdout.split(",")
        return int(total) * _MIB, int(free) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_number(name: str) -> int | None:
    """A number of the process's own cgroup (version 2); None where there is none or no limit."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").strip().rpartition("::")[2]
        text = Path("/sys/fs/cgroup").joinpath(group.lstrip("/"), name).read_text(encoding="ascii")
        return int(text)
    except (OSError, ValueError):
        return None

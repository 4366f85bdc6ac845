"""What the machine says of its memory is plausible."""

import os
from pathlib import Path

from daemon.config import machine
from tests.config.machines import machine as tree
from tests.config.machines import put


def test_available_ram_is_positive_and_below_the_total() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machine.available_ram_bytes() <= total


def test_the_tightest_control_group_bounds_ram(tmp_path: Path) -> None:
    limited = {"memory.max": f"{4 << 30}", "memory.current": f"{3 << 30}"}
    inner = {"memory.max": "max", "memory.current": f"{1 << 30}"}
    root = tree(
        tmp_path, [(0,)], groups={"/slice": limited, "/slice/llmd": inner}, group="/slice/llmd"
    )
    put(root / "proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB")
    assert machine.available_ram_bytes(root) == 1 << 30
    put(root / "sys/fs/cgroup/slice/memory.max", "max")
    assert machine.available_ram_bytes(root) == 32 << 30


def test_ram_is_as_fast_as_it_copies() -> None:
    assert machine.measured_ram_bytes_per_s(2) > 1e6

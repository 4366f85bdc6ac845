"""Machines as their kernels describe them: trees of /sys and /proc."""

from collections.abc import Iterable, Mapping
from pathlib import Path


def machine(
    root: Path,
    cores: Iterable[Iterable[int]],
    nodes: Mapping[int, str] | None = None,
    groups: Mapping[str, Mapping[str, str]] | None = None,
    group: str = "/",
) -> Path:
    """A tree with `cores`, each of some CPUs; `nodes` by number, control files by group."""
    for cpus in cores:
        together = ",".join(map(str, cpus))
        for cpu in cpus:
            put(root / f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", together)
    for number, cpus_of in (nodes or {}).items():
        put(root / f"sys/devices/system/node/node{number}/cpulist", cpus_of)
    put(root / "proc/self/cgroup", f"3:cpuset:/old\n0::{group}")
    for name, files in (groups or {}).items():
        for file, text in files.items():
            put(root / "sys/fs/cgroup" / name.lstrip("/") / file, text)
    return root


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")

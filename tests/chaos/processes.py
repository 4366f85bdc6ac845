"""The processes of a daemon, whatever their parent is by now, and the resources they hold."""

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

MARK = "LLMD_CHAOS_RUN"
"""A variable of the environment that all descendants of one daemon inherit."""


class Held(NamedTuple):
    """The resources that the processes of one kind hold together."""

    processes: int
    descriptors: int
    threads: int


def members(mark: str) -> dict[int, str]:
    """The living processes that carry the mark: pid -> module, "serve" for the daemon itself.

    One that has ended and was not reaped yet lives no more: it holds nothing.
    """
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = module_of(int(folder.name))
    return found


def words_of(pid: int) -> list[str]:
    """A process's command line; nothing once it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def module_of(pid: int) -> str:
    """The module that `python -m` runs there, "serve" for the daemon; else the first words."""
    words = words_of(pid)
    if "-m" not in words[:-1]:
        return " ".join(words[:4])
    name = words[words.index("-m") + 1]
    return "serve" if name == "daemon.cli.main" else name


def held(mark: str) -> dict[str, Held]:
    """The resources that the daemon's processes hold now, by module."""
    counts: dict[str, Counter[str]] = {}
    for pid, module in members(mark).items():
        folder = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            found = {
                "descriptors": len(list((folder / "fd").iterdir())),
                "threads": len(list((folder / "task").iterdir())),
            }
            counts.setdefault(module, Counter()).update({"processes": 1, **found})
    return {module: Held(**one) for module, one in sorted(counts.items())}


def shared_memory(mark: str) -> list[str]:
    """Anonymous shared memory and frames on their way that the daemon's processes have open."""
    links = []
    for pid in members(mark):
        with contextlib.suppress(OSError):
            links += [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
    return sorted(link for link in links if link.startswith(("/memfd:", "/dev/shm/")))


def await_end(mark: str, limit_s: float) -> dict[int, str]:
    """The processes that outlive the limit; empty as soon as there are none."""
    deadline_s = time.monotonic() + limit_s
    while (left := members(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"

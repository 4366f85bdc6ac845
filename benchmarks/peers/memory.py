"""What a server's processes take of the machine's memory."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.machine import process_tree

_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) (\S+) (\d+) *(.*)")
_FIELD = re.compile(r"(Rss|Pss|Anonymous): +(\d+) kB")
_OF_PROCESSES = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")
"""Mappings with a name that are memory all the same, shared by processes of one server."""
_KB_OF_MB = 1024


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB: `rss` counts a shared page in each process, `pss` counts it once.

    Pages of files, which another server may map too, are counted whole in both.
    """

    rss_mb: float
    pss_mb: float


@dataclass
class _Mapping:
    """One range of addresses of a process, in kB."""

    file: tuple[str, str, str] | None  # device, inode and offset
    rss: int = 0
    pss: int = 0
    anonymous: int = 0


def _mappings(smaps: str) -> Iterator[_Mapping]:
    """The mappings that the text of a /proc/PID/smaps lists."""
    current: _Mapping | None = None
    for line in smaps.splitlines():
        head = _HEAD.fullmatch(line)
        if head:
            if current:
                yield current
            offset, device, inode, name = head.groups()
            is_file = inode != "0" and not name.startswith(_OF_PROCESSES)
            current = _Mapping((device, inode, offset) if is_file else None)
        field = _FIELD.fullmatch(line)
        if field and current:
            setattr(current, field[1].lower(), int(field[2]))
    if current:
        yield current


def add_up(smaps: Iterable[str]) -> Memory:
    """The memory of processes, given the text of each one's smaps."""
    rss_kb = pss_kb = 0
    files: dict[tuple[str, str, str], int] = {}
    for text in smaps:
        for one in _mappings(text):
            rss_kb += one.rss
            if one.file is None:
                pss_kb += one.pss
                continue
            pss_kb += one.anonymous
            files[one.file] = max(files.get(one.file, 0), one.rss - one.anonymous)
    pss_kb += sum(files.values())
    return Memory(round(rss_kb / _KB_OF_MB, 1), round(pss_kb / _KB_OF_MB, 1))


def tree_memory(pid: int) -> Memory:
    """The memory of a living process and all its descendants."""
    texts = []
    for member in process_tree(pid):
        try:
            texts.append(Path(f"/proc/{member}/smaps").read_text())
        except OSError:
            continue
    return add_up(texts)

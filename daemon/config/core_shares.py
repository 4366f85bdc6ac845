"""The cores of each instance: those of the daemon, dealt out to its CPU workers.

Workers that each run a thread on every core wait for each other at every operation. So each gets
cores of its own, whole ones (both hardware threads of a core go to one worker) and of one NUMA node
where there are as many workers as nodes; it runs one thread on each. It is pinned to them, unless
they are all the daemon's cores. The daemon, its API and the workers of GPUs are not pinned: each
has one busy thread, for which the kernel finds a core that is idle at the moment.
"""

from collections.abc import Sequence

import msgspec

from daemon.config.cluster import by_ray
from daemon.config.cores import Cores, CpuCore, written_ranges
from daemon.config.instance_text import CPU, rank_devices
from daemon.config.schema import Config

_GPU = "a GPU's worker may run on every core"
_NODE = "of the node on which Ray places it, daemon.threads of them"


class CoreShare(msgspec.Struct, frozen=True):
    """The cores of one worker, and the rules that gave it those."""

    threads: int  # that compute; 0: one for each CPU
    cpus: tuple[int, ...] = ()  # that it is pinned to; empty: wherever the daemon may run
    why: str = ""
    ranks: tuple["CoreShare", ...] = ()  # of each rank, where there are several

    def of_rank(self, rank: int) -> "CoreShare":
        """The share of one rank."""
        return self.ranks[rank] if self.ranks else self

    def __str__(self) -> str:
        """Such as `cpus 0-3, 4 threads`; of several ranks, one after the other."""
        if self.ranks:
            return "; ".join(map(str, self.ranks))
        where = f"cpus {written_ranges(self.cpus)}" if self.cpus else "any cpu"
        if not self.threads:
            return where
        return f"{where}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def core_shares(config: Config, cores: Cores) -> tuple[CoreShare, ...]:
    """The share of each of config.instance."""
    threads = config.daemon.threads
    if by_ray(config):
        return tuple(CoreShare(threads, (), _NODE) for _spec in config.instance)
    placed = [rank_devices(spec) for spec in config.instance]
    count = sum(devices.count(CPU) for devices in placed)
    dealt, on_gpu = iter(deal(cores, count, threads)), CoreShare(threads, (), _GPU)
    return tuple(
        _together(tuple(next(dealt) if device == CPU else on_gpu for device in devices))
        if CPU in devices
        else on_gpu
        for devices in placed
    )


def _together(ranks: tuple[CoreShare, ...]) -> CoreShare:
    """The share of an instance with these ranks."""
    if len(ranks) == 1:
        return ranks[0]
    cpus = tuple(sorted({cpu for rank in ranks for cpu in rank.cpus}))
    return CoreShare(sum(rank.threads for rank in ranks), cpus, ranks[0].why, ranks)


def deal(cores: Cores, num_workers: int, threads: int = 0) -> list[CoreShare]:
    """Deal out the cores to `num_workers` CPU workers, with `threads` each (0: by their cores)."""
    parts = _parts(cores.cores, num_workers)
    granted = _granted([len(part) for part in parts], cores.granted)
    return [
        _share(cores, part, threads or own, bool(threads), num_workers)
        for part, own in zip(parts, granted, strict=True)
    ]


def _share(
    cores: Cores, part: Sequence[CpuCore], threads: int, configured: bool, num_workers: int
) -> CoreShare:
    """The share of a worker that may use `part`; `configured`: its threads are set."""
    cpus = tuple(sorted(cpu for core in part for cpu in core.cpus))
    kept = () if len(part) == len(cores.cores) else cpus
    why = _of(part, cores)
    if configured and threads > len(cpus):
        # Pinned, threads would wait for each other on one core: let them go where it is idle.
        return CoreShare(threads, (), f"daemon.threads, more than the CPUs of its {why}: not kept")
    if num_workers > 1:
        why += f" for {num_workers} workers"
    if num_workers > len(cores.cores):
        why += ", which share them"
    if configured:
        return CoreShare(threads, kept, f"daemon.threads; {why}")
    if cores.granted < len(cores.cores):
        why += f"; the control group grants {cores.quota:g} processors"
    return CoreShare(threads, kept, why)


def _granted(sizes: Sequence[int], total: int) -> list[int]:
    """Threads of each worker: `total` evenly over their `sizes` in cores; at least 1, at most one a
    core.

    With fewer threads than workers the sum exceeds `total`, and the workers share time.
    """
    threads = [1] * len(sizes)
    left = total - len(sizes)
    while left > 0 and (room := [n for n, size in enumerate(sizes) if threads[n] < size]):
        for worker in room[:left]:
            threads[worker] += 1
        left -= len(room)
    return threads


def _of(part: Sequence[CpuCore], cores: Cores) -> str:
    """Words for some cores, such as `4 of 8 cores, NUMA node 1`."""
    total = len(cores.cores)
    text = f"{len(part)} of {total} cores" if len(part) < total else f"{total} cores"
    text = "the one core" if total == 1 else text
    num_cpus = sum(len(core.cpus) for core in part)
    if num_cpus > len(part):
        text += f" ({num_cpus} hardware threads)"
    if len({core.node for core in cores.cores}) > 1:
        nodes = sorted({core.node for core in part})
        text += f", NUMA node{'s' if len(nodes) > 1 else ''} {written_ranges(nodes)}"
    return text


def _parts(cores: Sequence[CpuCore], num_workers: int) -> list[tuple[CpuCore, ...]]:
    """For each worker its cores: whole nodes where those are more, else a part of one."""
    if not num_workers:
        return []
    nodes: dict[int, list[CpuCore]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    if num_workers < len(nodes):
        parts: list[list[CpuCore]] = [[] for _ in range(num_workers)]
        for node in sorted(nodes.values(), key=len, reverse=True):
            min(parts, key=len).extend(node)
        return [tuple(part) for part in parts]
    counts = dict.fromkeys(nodes, 0)
    for _ in range(num_workers):
        roomiest = max(nodes, key=lambda number: len(nodes[number]) / (counts[number] + 1))
        counts[roomiest] += 1
    return [part for number, node in nodes.items() for part in _cut(node, counts[number])]


def _cut(cores: Sequence[CpuCore], count: int) -> list[tuple[CpuCore, ...]]:
    """Neighbouring cores for each of `count` workers; all cores for each where they are fewer.

    Neighbours mostly share a cache.
    """
    if count > len(cores):
        return [tuple(cores)] * count
    parts, first = [], 0
    for size in _evenly(len(cores), count):
        parts.append(tuple(cores[first : first + size]))
        first += size
    return parts


def _evenly(total: int, count: int) -> list[int]:
    """`total` as `count` numbers that differ by 1 at most, the larger ones first."""
    return [total // count + (place < total % count) for place in range(count)] if count else []

"""Two workers of the embedded model on the nodes of a Ray cluster, and the same two without Ray.

The cluster has two nodes on this machine's loopback, and so Ray's own processes share its cores.
Both daemons are asked in turns: many answers at once for throughput, one alone for the time of a
token, which has each step's way over proxy, Ray and actor in it. Processor time is that of Ray's
processes and of the proxies, without the workers'. With `--split` one worker takes prompts and the
other one answers, so that the keys and values of every prompt go from node to node.

    python -m benchmarks.cluster [--turns 5] [--requests 32] [--tokens 48] [--split]
"""

import argparse
import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.peers.machine import describe
from tests.cluster.clusters import RayCluster
from tests.cluster.ray_node import LOOPBACK_ONLY
from tests.e2e.live import LiveDaemon

FLAGS = ("--roles", "mixed", "--set", "daemon.threads=1")
MIXED, SPLIT = ("cpu", "cpu"), ("cpu:prefill", "cpu:decode")
PROMPT = "Number {}: tell me about owls."
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """One daemon, and what was measured of it."""

    name: str
    daemon: LiveDaemon
    cluster: RayCluster
    tokens_per_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)  # of one answer alone
    beside: list[float] = field(default_factory=list)  # cores that Ray and the proxies took

    async def turn(self, number: int, requests: int, tokens: int) -> None:
        """Ask many at once, then one alone."""
        model = self.daemon.model()["id"]
        async with aiohttp.ClientSession(self.daemon.url) as session:

            async def ask(at: int) -> None:
                body = {"model": model, "prompt": PROMPT.format(at), "max_tokens": tokens}
                body |= {"temperature": 0, "ignore_eos": True}
                async with session.post("/v1/completions", json=body) as response:
                    assert response.status == 200, await response.text()
                    await response.read()

            began_s, before_s = time.monotonic(), self.beside_s()
            await asyncio.gather(*(ask(1000 * number + at) for at in range(requests)))
            took_s = time.monotonic() - began_s
            self.tokens_per_s.append(requests * tokens / took_s)
            self.beside.append((self.beside_s() - before_s) / took_s)
            began_s = time.monotonic()
            await ask(1000 * number + requests)
            self.token_s.append((time.monotonic() - began_s) / tokens)

    def beside_s(self) -> float:
        """Processor seconds so far of Ray's processes and the daemon's proxies."""
        pids = [pid for node in self.cluster.nodes.values() for pid in node.pids()]
        for task in Path(f"/proc/{self.daemon.process.pid}/task").iterdir():
            pids += [int(pid) for pid in (task / "children").read_text().split()]
        return sum(map(processor_s, pids))


def processor_s(pid: int) -> float:
    """Processor seconds of a process of Ray's or of a proxy; 0 of any other."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    if b"daemon.engine" in command or (b"daemon." in command and b"daemon.cluster" not in command):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def spread(values: Iterable[float], scale: float = 1.0) -> str:
    """Median, least and most."""
    found = sorted(scale * value for value in values)
    return f"{median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32, help="at once")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--split", action="store_true", help="one for prompts, one for answers")
    options = parser.parse_args()
    flags = ["--instance", *(SPLIT if options.split else MIXED), *FLAGS]
    with RayCluster() as cluster:
        cluster.add("first")
        cluster.add("second")
        ray = ["--set", 'cluster.launcher="ray"', "--set", f'cluster.address="{cluster.address}"']
        with (
            LiveDaemon(*flags, *ray, env=dict(LOOPBACK_ONLY)) as placed,
            LiveDaemon(*flags) as local,
        ):
            sides = [Side("through Ray", placed, cluster), Side("without", local, cluster)]
            for side in sides:
                side.daemon.wait_all_ready()
            asyncio.run(in_turns(sides, options))
            counters = [side.daemon.idle_snapshot().counters for side in sides]
    print(describe())
    for side in sides:
        print(f"{side.name:<12} tokens/s {spread(side.tokens_per_s)}")
        print(f"{'':<12} ms a token of one answer {spread(side.token_s, 1e3)}")
        print(f"{'':<12} cores of Ray and proxies {spread(side.beside)}")
    for side, count in zip(sides, counters, strict=True):
        mean_s = count.handoff_sum_s / max(1, count.handoffs)
        print(f"{side.name}: {count.handoffs} handoffs, {1e3 * mean_s:.1f} ms each")
    pairs = list(zip(sides[0].tokens_per_s, sides[1].tokens_per_s, strict=True))
    print(f"throughput through Ray, of that without: {spread(one / two for one, two in pairs)}")
    alone = zip(sides[0].token_s, sides[1].token_s, strict=True)
    print(f"time of a token of one answer alike: {spread(one / two for one, two in alone)}")


async def in_turns(sides: list[Side], options: argparse.Namespace) -> None:
    """Ask both daemons, in another order each time; the first turn only warms them."""
    for number in range(options.turns + 1):
        for side in sides[:: 1 if number % 2 else -1]:
            await side.turn(number, options.requests, options.tokens)
            print(f"turn {number}, {side.name}: {side.tokens_per_s[-1]:.1f} tokens/s", flush=True)
    for side in sides:
        for values in (side.tokens_per_s, side.token_s, side.beside):
            del values[0]


if __name__ == "__main__":
    main()

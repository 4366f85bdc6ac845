"""Blocks between two processes that hold KV pools on a CPU: bytes a second, checked and unchecked.

Both ends of a link are as in two workers; nothing is computed beside it. Each round sends the same
number of bytes both ways of checking, one after another, and the medians over the rounds are
printed beside the processor's name, the speed of a plain copy, and that of the checksum alone.

    python -m benchmarks.handoff [--rounds 5] [--megabytes 256]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.handoff_peer import Ended, Join, Leave, Peer, PoolSizes
from daemon.engine.kv.pool import PagedKV
from daemon.engine.transfer.layout import WHOLE, layout_of
from daemon.engine.transfer.messages import Done
from daemon.engine.transfer.sums import BlockSums

POOLS = {
    "SmolLM2 135M": PoolSizes(512, 30, 16, 3, 64, seed=-1),
    "Llama 3 8B": PoolSizes(64, 32, 16, 8, 128, dtype="bfloat16", seed=-1),
}


def processor() -> str:
    """Its name, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} x {named[0]}" if named else "unknown"


def sent_s(here: Ended, count: int, transfers: int) -> float:
    """From the first of some orders to the last arrival, as the sender hears of it."""
    chance = np.random.default_rng(0)
    blocks, targets = (
        chance.permutation(here.cache.num_blocks)[:count].astype(np.int32) for _ in range(2)
    )
    fills = np.full(count, here.cache.block_size, np.int32)
    began_s = time.perf_counter()
    for transfer in range(transfers):
        here.sender.send(transfer, blocks, targets, fills)
    for _ in range(transfers):
        told = here.next()
        if not isinstance(told, Done):
            raise RuntimeError(str(told))
    return time.perf_counter() - began_s


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median time of some work."""
    times = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[1:])


def alone(cache: PagedKV, rounds: int) -> tuple[float, float]:
    """Bytes a second of a plain copy of a pool, and of its checksum; one thread each."""
    other, sums = torch.empty_like(cache.raw), BlockSums(layout_of(cache), cache.raw.device)
    every = np.arange(cache.num_blocks, dtype=np.int32)
    spans = layout_of(cache).spans(WHOLE)
    copy_s = seconds(lambda: other.copy_(cache.raw), rounds)
    sum_s = seconds(lambda: sums.of(cache.raw, spans, every), rounds)
    return cache.raw.nbytes / copy_s, cache.raw.nbytes / sum_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="of each round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(processor())
    with Peer() as peer, torch.inference_mode():
        for name, sizes in POOLS.items():
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(arguments.rounds):
                for checked, rates in found.items():
                    here = peer.join(Join(sizes, False), Join(sizes, True, checked=checked))
                    count = sizes.num_blocks // 2
                    size_bytes = count * here.cache.block_bytes
                    transfers = max(1, (arguments.megabytes << 20) // size_bytes)
                    sent_s(here, count, 1)
                    rates.append(transfers * size_bytes / sent_s(here, count, transfers))
                    here.end.close()
                    peer.ask(Leave())
            copied, summed = alone(here.cache, arguments.rounds)
            checked, unchecked = (statistics.median(found[one]) / 1e9 for one in (True, False))
            print(
                f"{name}, blocks of {here.cache.block_bytes:,} bytes: {checked:.2f} GB/s checked, "
                f"{unchecked:.2f} GB/s unchecked; alone on one thread, a copy {copied / 1e9:.2f} "
                f"GB/s, the checksum {summed / 1e9:.2f} GB/s"
            )


if __name__ == "__main__":
    main()

"""Handoff against plain copies: through host memory and straight, whole and layer by layer."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.handoff_peer import Ended, Join, Leave, Peer, PoolSizes
from benchmarks.gpu.report import Figure
from benchmarks.gpu.timing import seconds
from daemon.engine.transfer.messages import Done
from daemon.wire.columns import Column


@dataclass(frozen=True, slots=True)
class Case:
    """The shape of a model's blocks, and what is sent."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    blocks: int  # of a transfer
    transfers: int  # in a row
    rounds: int
    prompts: tuple[int, ...]  # tokens

    def pool(self, device: str) -> PoolSizes:
        """A pool for two transfers."""
        shape = self.layers, BLOCK_SIZE, self.kv_heads, self.head_dim
        return PoolSizes(2 * self.blocks, *shape, "bfloat16", "", device, seed=-1)


BLOCK_SIZE = 16
FULL = (
    Case("Llama 3 8B", 32, 8, 128, 256, 8, 5, (256, 2048)),
    Case("135M", 30, 3, 64, 1024, 4, 3, ()),
)
TINY = (Case("tiny", 2, 1, 16, 4, 2, 2, (32,)),)
KEY = "handoff"


def handoff_figures(device: str, tiny: bool) -> Iterator[Figure]:
    """Bytes of KV a second from pool to pool of two processes on one device."""
    cases, on_gpu = TINY if tiny else FULL, device.startswith("cuda")
    pinned = _pinned_rates(device, 1 << 20 if tiny else 256 << 20)
    straight = _device_rate(device, 1 << 20 if tiny else 1 << 30)
    for way, rate in zip(("out", "in"), pinned, strict=True):
        yield Figure(f"pinned copy {way}", rate, "GB/s")
    with Peer() as peer:
        for case in cases:
            yield from _figures(peer, case, device, False, min(pinned))
            if on_gpu:
                yield from _figures(peer, case, device, True, straight)


def _figures(peer: Peer, case: Case, device: str, direct: bool, limit: float) -> Iterator[Figure]:
    pool = case.pool(device)
    here = peer.join(Join(pool, sends=False), Join(pool, sends=True, direct=direct))
    if here.sender.direct == direct:
        way, apart = "CUDA IPC" if direct else "host memory", _apart(here, case.blocks)
        for layered in (False, True):
            size_bytes = case.transfers * case.blocks * here.cache.block_bytes
            times = [_sent_s(here, apart, layered, case.transfers) for _ in range(case.rounds + 1)]
            rate, raw = size_bytes / statistics.median(times[1:]) / 1e9, {"s": times}
            kind = f"{way} {'layer by layer' if layered else 'whole'}"
            key = KEY if case in (FULL[0], TINY[0]) and not layered and not direct else ""
            note = f"{case.blocks} blocks of {here.cache.block_bytes / 2**20:.2f} MiB"
            raw |= {"bytes": size_bytes}
            name = f"handoff {kind} {case.name}"
            yield Figure(name, rate, "GB/s", limit, note, key, raw)
        for tokens in case.prompts:
            some = _apart(here, tokens // BLOCK_SIZE)
            times = [_sent_s(here, some, False, 1) for _ in range(case.rounds + 1)]
            name = f"handoff {way} {case.name}, a prompt of {tokens:,} tokens"
            yield Figure(name, 1e3 * statistics.median(times), "ms", raw={"s": times})
    else:
        yield Figure("handoff by CUDA IPC was not possible", 0.0, "GB/s")
    here.end.close()
    peer.ask(Leave())


Columns = tuple[Column, Column, Column]


def _apart(here: Ended, count: int) -> Columns:
    """Blocks that lie apart, as they do after a while; others there; full."""
    chance = np.random.default_rng(0)
    blocks, targets = (
        chance.permutation(here.cache.num_blocks)[:count].astype(np.int32) for _ in range(2)
    )
    return blocks, targets, np.full(count, here.cache.block_size, np.int32)


def _sent_s(here: Ended, columns: Columns, layered: bool, transfers: int) -> float:
    """From the first order to the last arrival, as the sender hears of it."""
    began_s = time.perf_counter()
    for transfer in range(transfers):
        if layered:
            here.sender.begin_layers(transfer, *columns)
            for layer in range(here.cache.num_layers):
                here.sender.after_layer(layer)
            here.sender.after_step()
        else:
            here.sender.send(transfer, *columns)
    for _ in range(transfers):
        told = here.next()
        if not isinstance(told, Done):
            raise RuntimeError(str(told))
    return time.perf_counter() - began_s


def _pinned_rates(device: str, size_bytes: int) -> tuple[float, float]:
    """GB/s of one large copy out of a device's memory into pinned memory, and back."""
    on_gpu = device.startswith("cuda")
    host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=on_gpu).random_()
    there = torch.empty(size_bytes, dtype=torch.uint8, device=device).random_()
    out_s = seconds(lambda: host.copy_(there, non_blocking=True), device, 10)
    in_s = seconds(lambda: there.copy_(host, non_blocking=True), device, 10)
    return size_bytes / out_s / 1e9, size_bytes / in_s / 1e9


def _device_rate(device: str, size_bytes: int) -> float:
    """GB/s of a copy within a device's memory; each byte is read and written."""
    one, other = (
        torch.empty(size_bytes, dtype=torch.uint8, device=device).random_() for _ in range(2)
    )
    return size_bytes / seconds(lambda: one.copy_(other), device, 10) / 1e9

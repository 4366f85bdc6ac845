"""Handoff between two processes on one device: every byte, both ways, and either end killed."""

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.handoff_peer import (
    AfterLayer,
    Ended,
    Join,
    Leave,
    Next,
    Peer,
    PoolSizes,
    Read,
    Send,
)
from benchmarks.gpu.report import Check
from benchmarks.gpu.timing import keep_busy
from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.messages import Broken, Done, Lost, News
from daemon.wire.columns import Int32, int32
from tests.gpu.move_checks import move_checks

SETTLED_S = 0.2
"""After it, nothing that a dead process had begun is still at work."""
BUSY_S = 0.03
MISSED_MB = 128.0
"""Device memory that the driver and torch keep for themselves."""


@dataclass(frozen=True, slots=True)
class Case:
    """Pools of both ends, and a ring that is smaller than a transfer."""

    name: str
    source: PoolSizes
    target: PoolSizes
    num_slots: int
    slot_bytes: int
    count: int  # blocks of a transfer

    def blocks(self) -> tuple[Int32, Int32, Int32]:
        """Blocks, targets and fills: scattered, one of them part-filled."""
        chance = np.random.default_rng(5)
        blocks = chance.permutation(self.source.num_blocks)[: self.count].astype(np.int32)
        targets = chance.permutation(self.target.num_blocks)[: self.count].astype(np.int32)
        fills = np.full(self.count, self.source.block_size, np.int32)
        fills[-1] = 1
        return blocks, targets, fills


def cases(device: str) -> tuple[Case, ...]:
    """Blocks that are copied one by one, and such that are gathered; tiny ones on a CPU."""
    if not device.startswith("cuda"):
        return tuple(_case(device, kv_dtype, 3, 4, 2, 8, 7, 4096) for kv_dtype in ("", "int8"))
    return (
        _case(device, "", 32, 16, 8, 128, 24, 4 << 20),
        _case(device, "", 30, 16, 3, 64, 40, 4 << 20),
        _case(device, "int8", 32, 16, 8, 128, 24, 4 << 20),
        _case(device, "float8_e4m3fn", 3, 16, 1, 80, 40, 64 << 10),
    )


def _case(
    device: str,
    kv_dtype: str,
    layers: int,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    count: int,
    slot_bytes: int,
) -> Case:
    def pool(num_blocks: int, seed: int) -> PoolSizes:
        sizes = layers, block_size, kv_heads, head_dim
        return PoolSizes(num_blocks, *sizes, "bfloat16", kv_dtype, device, seed)

    name = f"{layers}x{kv_heads}x{head_dim} {kv_dtype or 'bfloat16'}"
    return Case(name, pool(2 * count, 1), pool(3 * count, 2), 3, slot_bytes, count)


def handoff_checks(device: str) -> Iterator[Check]:
    """All of it; a GPU needs no other work beside it, since its memory is counted."""
    ways = (True, False) if device.startswith("cuda") else (False,)
    with Peer() as peer:
        for case in cases(device):
            for direct in ways:
                yield from _arrivals(peer, case, direct)
        yield _differing(peer, device)
    if device.startswith("cuda"):
        yield from move_checks(device)
    for direct in reversed(ways):  # the way that a fault of the driver would spoil comes last
        case = cases(device)[0]
        yield from _killed_sender(case, direct)
        yield from _killed_receiver(case, direct)


def _way(direct: bool) -> str:
    return "CUDA IPC" if direct else "host memory"


def _join(peer: Peer, case: Case, direct: bool, sends: bool = True) -> Ended:
    """`sends`: this process does."""
    ours, theirs = (case.source, case.target) if sends else (case.target, case.source)
    ring = {"direct": direct, "num_slots": case.num_slots, "slot_bytes": case.slot_bytes}
    return peer.join(Join(theirs, not sends, **ring), Join(ours, sends, **ring))


def _arrivals(peer: Peer, case: Case, direct: bool) -> Iterator[Check]:
    """Whole and layer by layer in one link: the receiver's whole pool, byte by byte."""
    here = _join(peer, case, direct)
    if direct:
        yield Check("handoff opens the pool by CUDA IPC", int(not here.sender.direct), 0)
    blocks, targets, fills = case.blocks()
    original, expected = case.source.contents()[blocks.tolist()], case.target.contents()
    for transfer, layered in enumerate((False, True)):
        _write_late(here, blocks, original ^ transfer)
        expected[targets.tolist()] = original ^ transfer
        if layered:
            here.sender.begin_layers(transfer, blocks, targets, fills)
            for layer in range(case.source.num_layers):
                here.sender.after_layer(layer)
            here.sender.after_step()
        else:
            here.sender.send(transfer, blocks, targets, fills)
        ends = here.next(), peer.ask(Next())
        contents = peer.ask(Read())
        wrong = int((contents.raw.reshape(expected.shape) != expected.numpy()).sum())
        wrong += int((contents.fills[targets] != fills).sum())
        wrong += sum(not isinstance(end, Done) for end in ends)
        kind = "layer by layer" if layered else "whole"
        yield Check(f"handoff {case.name} {_way(direct)} {kind}, bytes wrong", wrong, 0)
        targets = np.roll(targets, 1)
    here.end.close()
    peer.ask(Leave())


def _write_late(here: Ended, blocks: Int32, content: torch.Tensor) -> None:
    """Rubbish in the blocks, and a step that still runs on a GPU and will write `content`."""
    raw = here.cache.raw
    index, content = torch.from_numpy(blocks).long().to(raw.device), content.to(raw.device)
    raw[index] = 255 - content
    _keep_busy(raw.device)
    raw[index] = content


def _differing(peer: Peer, device: str) -> Check:
    """Pools whose blocks differ are refused."""
    met = 1
    with contextlib.suppress(TransferError):
        peer.join(
            Join(PoolSizes(head_dim=16, device=device), sends=False),
            Join(PoolSizes(device=device), sends=True),
        )
        met = 0
    return Check("handoff refuses pools that differ", 1 - met, 0)


def _killed_sender(case: Case, direct: bool) -> Iterator[Check]:
    """A sender that dies in the middle: reported, and its copies have ended by then."""
    blocks, targets, fills = case.blocks()
    with Peer() as peer:
        here = _join(peer, case, direct, sends=False)
        peer.ask(Send(1, blocks, targets, fills, layered=True))
        peer.ask(AfterLayer(0))
        peer.ask(Send(2, blocks[:1], int32([_other(case, targets)]), fills[:1]))
        first = here.next()
        peer.order(AfterLayer(1))
        peer.kill()
        told = [here.next(), here.next()]
    wrong = int(not isinstance(first, Done))
    wrong += int(not _is_broken(told[0], 1, "the sender is gone"))
    wrong += int(told[1] != Lost("the sender is gone"))
    here.cache.raw.zero_()
    time.sleep(SETTLED_S)
    wrong += int(here.cache.raw.count_nonzero())
    here.end.close()
    yield Check(f"handoff {_way(direct)}: a killed sender is reported", wrong, 0)


def _is_broken(told: News, transfer: int, reason: str) -> bool:
    return isinstance(told, Broken) and (told.transfer, told.reason) == (transfer, reason)


def _other(case: Case, targets: Int32) -> int:
    return int(np.setdiff1d(np.arange(case.target.num_blocks), targets)[0])


def _killed_receiver(case: Case, direct: bool) -> Iterator[Check]:
    """A receiver that dies in the middle: reported; the sender computes on, no memory is lost."""
    blocks, targets, fills = case.blocks()
    before = _free_mb(case.source.device)
    with Peer() as peer:
        here = _join(peer, case, direct)
        _keep_busy(here.cache.raw.device)
        here.sender.send(1, blocks, targets, fills)
        here.sender.begin_layers(2, blocks, targets, fills)
        here.sender.after_layer(0)
        peer.kill()
        told = [here.next() for _ in range(3)]
    wrong = int(told[-1] != Lost("the receiver is gone"))
    # Whether the first arrived before the kill is a matter of luck.
    wrong += int(not _is_broken(told[1], 2, "the receiver is gone"))
    here.end.close()
    wrong += int((here.cache.raw.cpu() != case.source.contents()).sum())
    del here
    yield Check(f"handoff {_way(direct)}: a killed receiver is reported", wrong, 0)
    if case.source.device.startswith("cuda"):
        missed = before - _free_mb(case.source.device)
        name = f"handoff {_way(direct)}: memory missed after a killed receiver"
        yield Check(name, missed, MISSED_MB, "MB")


def _free_mb(device: str) -> float:
    if not device.startswith("cuda"):
        return 0.0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return float(torch.cuda.mem_get_info(device)[0]) / 1e6


def _keep_busy(device: torch.device) -> None:
    """Some tens of milliseconds in which a GPU does nothing else; nothing waits for it."""
    if device.type == "cuda":
        keep_busy(BUSY_S)

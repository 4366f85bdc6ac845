"""The daemon's view of this machine's GPUs, without torch, beside torch's own."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.report import Check
from daemon.config.cuda import Card, cuda_devices

GIB = 1 << 30
FREE_LIMIT_GIB = 2.0
"""torch's own context lies between the two questions."""
TOTAL_LIMIT = 0.05
"""NVML counts what the driver keeps for itself as part of a card's memory, CUDA does not."""


def device_checks(_device: str) -> Iterator[Check]:
    """Every GPU that is visible, in CUDA's order."""
    found = cuda_devices()
    count = torch.cuda.device_count()
    yield Check("GPUs found", abs(len(found.cards) - count), 0, found.fault)
    ours, theirs = ".".join(map(str, found.torch_cuda or ())), str(torch.version.cuda)
    yield Check("CUDA version of torch", ours != theirs, 0, f"{ours}, torch says {theirs}")
    for number, card in enumerate(found.cards[:count]):
        yield from _card_checks(number, card)


def _card_checks(number: int, card: Card) -> Iterator[Check]:
    free_bytes, total_bytes = torch.cuda.mem_get_info(number)
    kind = (torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number))
    yield Check(
        f"cuda:{number} name, generation", (card.name, card.capability) != kind, 0, f"{kind}"
    )
    off = abs(card.total_bytes - total_bytes) / total_bytes
    yield Check(f"cuda:{number} memory, share", off, TOTAL_LIMIT)
    free_off = float("nan") if card.free_bytes is None else abs(card.free_bytes - free_bytes) / GIB
    yield Check(f"cuda:{number} free memory, GiB", free_off, FREE_LIMIT_GIB)

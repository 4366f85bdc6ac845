"""How long something takes on a device."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median time of one call, as the device sees it (CUDA events) or the host's clock."""
    for _ in range(min(3, repeats)):
        work()
    if not device.startswith("cuda"):
        return statistics.median(host_seconds(work) for _ in range(repeats))
    pairs = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        pairs.append((began, ended))
    torch.cuda.synchronize()
    return statistics.median(began.elapsed_time(ended) / 1e3 for began, ended in pairs)


def host_seconds(work: Callable[[], object]) -> float:
    """What one call takes the host; work that it queues on a device may go on."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

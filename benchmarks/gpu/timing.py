"""How long something takes on a device."""

import statistics
import time
from collections.abc import Callable

import torch

CYCLES_PER_S = 2e9
"""Of a GPU at its highest clock, about: a lower one only keeps it busy for longer."""

LAUNCH_SLACK_S = 1e-4


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median time of one call, as the device sees it (CUDA events) or the host's clock.

    A GPU is kept busy while the host queues the call, so that launches which take the host longer
    than the device are not measured.
    """
    for _ in range(min(3, repeats)):
        work()
    if not device.startswith("cuda"):
        return statistics.median(host_seconds(work) for _ in range(repeats))
    torch.cuda.synchronize()
    launch_s = host_seconds(work)
    pairs = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        keep_busy(1.5 * launch_s + LAUNCH_SLACK_S)
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


def keep_busy(seconds: float) -> None:
    """Have the current CUDA stream do nothing for about so long; returns at once."""
    torch.cuda._sleep(int(seconds * CYCLES_PER_S))

"""Which device does the sampler's work: the GPU's kernels, or the host in their place."""

import torch

from daemon.engine.families import DRAW, EDIT, NONE, ByTorch
from daemon.engine.sampler.means import Means, TorchMeans
from daemon.engine.sampler.on_host import HostMeans, PartedMeans


def means_of(vocab_size: int, device: torch.device, by_torch: ByTorch = NONE) -> Means:
    """What works for the sampler on a device; of a GPU's kernels not those that torch computes."""
    if device.type != "cuda":
        return TorchMeans(vocab_size)
    if by_torch >= {DRAW, EDIT}:
        return HostMeans(vocab_size)
    from daemon.engine.cuda.means import CudaMeans

    return parted(CudaMeans(vocab_size, device), HostMeans(vocab_size), by_torch)


def parted(means: Means, host: Means, by_torch: ByTorch) -> Means:
    """A device's means, but for what the host computes in their place."""
    if not by_torch & {DRAW, EDIT}:
        return means
    return PartedMeans(host if EDIT in by_torch else means, host if DRAW in by_torch else means)

"""Which device does the sampler's work: the GPU's kernels, or the host in their place."""

import torch

from daemon.engine.families import DRAW, EDIT, NONE, ByTorch
from daemon.engine.sampler.on_host import HostSamplerOps, SplitSamplerOps
from daemon.engine.sampler.ops import SamplerOps, TorchSamplerOps


def sampler_ops_of(vocab_size: int, device: torch.device, by_torch: ByTorch = NONE) -> SamplerOps:
    """What works for the sampler on a device; of a GPU's kernels not those that torch computes."""
    if device.type != "cuda":
        return TorchSamplerOps(vocab_size)
    if by_torch >= {DRAW, EDIT}:
        return HostSamplerOps(vocab_size)
    from daemon.engine.cuda.sampler_ops import CudaSamplerOps

    return split(CudaSamplerOps(vocab_size, device), HostSamplerOps(vocab_size), by_torch)


def split(ops: SamplerOps, host: SamplerOps, by_torch: ByTorch) -> SamplerOps:
    """A device's ops, but for what the host computes in their place."""
    if not by_torch & {DRAW, EDIT}:
        return ops
    return SplitSamplerOps(host if EDIT in by_torch else ops, host if DRAW in by_torch else ops)

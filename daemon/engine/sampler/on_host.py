"""The sampler's work for a device whose own kernels are not trusted: on the host, as for a CPU.

Logits are copied to the host and results back, so the host waits for the device at each step.
"""

import torch

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import Params
from daemon.engine.sampler.ops import Edited, Integers, SamplerOps, TorchSamplerOps


class HostSamplerOps(TorchSamplerOps):
    """`SamplerOps` of a device, computed as those of a CPU."""

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        here = copy.cpu()
        super().edit(here, logits, edited)
        copy.copy_(here)

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """See `SamplerOps`."""
        here = copy.cpu()
        super().forbid(here, allowed)
        copy.copy_(here)

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `SamplerOps`."""
        return super().choose(logits.cpu(), params, positions).to(logits.device)

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        super().append(tokens.cpu(), edited)


class SplitSamplerOps:
    """`SamplerOps` of which one computes edits and masks, another one draws."""

    def __init__(self, edits: SamplerOps, draws: SamplerOps) -> None:
        self.join, self.leave, self.append = edits.join, edits.leave, edits.append
        self.edit, self.forbid, self.choose = edits.edit, edits.forbid, draws.choose
        self.rules, self.took = edits.rules, edits.took

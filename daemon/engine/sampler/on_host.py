"""The sampler's work for a device whose own kernels are not trusted: on the host, as for a CPU.

Logits are copied to the host and what came of them back, so the host waits for the device at each
step.
"""

import torch

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import Params
from daemon.engine.sampler.means import Edited, Integers, Means, TorchMeans


class HostMeans(TorchMeans):
    """`Means` of a device, computed as those of a CPU."""

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """See `Means`."""
        here = copy.cpu()
        super().edit(here, logits, edited)
        copy.copy_(here)

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """See `Means`."""
        here = copy.cpu()
        super().forbid(here, allowed)
        copy.copy_(here)

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `Means`."""
        return super().choose(logits.cpu(), params, positions).to(logits.device)

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """See `Means`."""
        super().append(tokens.cpu(), edited)


class PartedMeans:
    """`Means` of which one computes edits and masks, another one draws."""

    def __init__(self, edits: Means, draws: Means) -> None:
        self.join, self.leave, self.append = edits.join, edits.leave, edits.append
        self.edit, self.forbid, self.choose = edits.edit, edits.forbid, draws.choose
        self.rules, self.took = edits.rules, edits.took

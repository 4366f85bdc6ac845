"""The sampler's work for a device whose own kernels are not trusted: on the host, as for a CPU.

Logits are copied to the host and what came of them back, so the host waits for the device at each
step.
"""

import torch

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import Params
from daemon.engine.sampler.means import Edited, History, Integers, Means, TorchMeans
from daemon.request import SamplingParams


class HostMeans:
    """`Means` of a device, computed by those of a CPU."""

    def __init__(self, vocab_size: int) -> None:
        self._means = TorchMeans(vocab_size)

    def join(
        self,
        slot: int,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: History,
        ends: tuple[int, ...],
    ) -> None:
        """See `Means`."""
        self._means.join(slot, sampling, num_prompt_tokens, history, ends)

    def leave(self, slot: int) -> None:
        """See `Means`."""
        self._means.leave(slot)

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """See `Means`."""
        here = copy.cpu()
        self._means.edit(here, logits, edited)
        copy.copy_(here)

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """See `Means`."""
        here = copy.cpu()
        self._means.forbid(here, allowed)
        copy.copy_(here)

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `Means`."""
        return self._means.choose(logits.cpu(), params, positions).to(logits.device)

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """See `Means`."""
        self._means.append(tokens.cpu(), edited)


class PartedMeans:
    """`Means` of which one computes edits and masks, another one draws."""

    def __init__(self, edits: Means, draws: Means) -> None:
        self._draws = draws
        self.join, self.leave, self.append = edits.join, edits.leave, edits.append
        self.edit, self.forbid = edits.edit, edits.forbid

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `Means`."""
        return self._draws.choose(logits, params, positions)

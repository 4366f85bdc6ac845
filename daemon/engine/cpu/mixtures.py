"""Blocks of experts within programs: the router and all that follows it, as calls."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from daemon.engine.cpu import calls, expert_calls
from daemon.engine.cpu.expert_calls import ExpertRows
from daemon.engine.cpu.expert_kernels import MOST_GROUPS
from daemon.engine.cpu.experts import ExpertProducts
from daemon.engine.cpu.quantised import StateBuffers
from daemon.engine.cpu.rounded_kernels import LANES
from daemon.engine.cpu.team import Call
from daemon.engine.layers.mlp import DenseMlp, Mixture
from daemon.engine.layers.routers import Router


@dataclass(frozen=True, slots=True)
class MixtureBuffers:
    """Buffers that a decoder's programs write for its mixtures; none where it has no mixture."""

    logits: torch.Tensor  # [T, E]
    scratch: StateBuffers


def is_called(mixture: Mixture) -> bool:
    """Whether a block is calls alone."""
    router, experts = mixture.router, mixture.experts
    if router is None or not isinstance(experts, ExpertProducts):
        return False
    weight = router.weight
    usual = weight.dtype is torch.float32 and weight.is_contiguous()
    usual &= router.groups == router.kept_groups or router.groups <= MOST_GROUPS
    return usual and weight.shape == (experts.num_experts, experts.width)


def mixture_buffers(
    mlps: Iterable[DenseMlp | Mixture | None], most_tokens: int
) -> MixtureBuffers | None:
    """Buffers for all mixtures of a decoder, of up to `most_tokens` tokens."""
    found = [mixture for mixture in mlps if isinstance(mixture, Mixture) and is_called(mixture)]
    if not found:
        return None
    num_experts = max(mixture.experts.num_experts for mixture in found)
    chosen = max(mixture.router.num_chosen for mixture in found if mixture.router)
    most_rows = ExpertRows.most(most_tokens, chosen, num_experts, LANES[-1])
    logits = torch.zeros(most_tokens * num_experts)
    return MixtureBuffers(logits, StateBuffers(most_rows, zeroed=True))


class MixtureCalls:
    """The calls of mixtures for a number of tokens."""

    def __init__(self, count: int, buffers: MixtureBuffers | None) -> None:
        self._count = count
        self._buffers = buffers
        self._rows: dict[tuple[int, int, int], ExpertRows] = {}
        self._scales: dict[tuple[float, float], torch.Tensor] = {}

    def calls(
        self,
        mixture: Mixture,
        states: torch.Tensor,
        output: torch.Tensor,
        beside: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> list[Call]:
        """Calls that compute `output` [T, width] of `states` [T, width], both dense; `beside`: see
        `ExpertProducts.calls`.
        """
        router, experts, buffers = mixture.router, mixture.experts, self._buffers
        assert router is not None and buffers is not None
        rows = self._rows_of(experts, router.num_chosen)
        num_experts = experts.num_experts
        logits = buffers.logits[: self._count * num_experts].view(self._count, num_experts)
        return [
            calls.linear(router.weight, router.bias, states, logits),
            expert_calls.routed(logits, rows, router, self._scale(router)),
            *experts.calls(states, rows, output, buffers.scratch, beside),
        ]

    def _scale(self, router: Router) -> torch.Tensor:
        """The tensor of a router's scale and addition, which lives as long as calls name it."""
        key = router.scale, router.added
        return self._scales.setdefault(key, torch.tensor(key))

    def _rows_of(self, experts: ExpertProducts, num_chosen: int) -> ExpertRows:
        """Layers share their rows where as many tokens lie at the same multiples."""
        multiple = experts.multiple(self._count, num_chosen)
        key = num_chosen, experts.num_experts, multiple
        if key not in self._rows:
            self._rows[key] = ExpertRows.of(self._count, *key)
        return self._rows[key]

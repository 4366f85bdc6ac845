"""`daemon.engine.layers.ops.Ops` for float32 on the CPU, each one call of a compiled kernel."""

import torch

from daemon.engine.cpu import calls, latent, mixer_calls
from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.quantised import can_multiply, look_up
from daemon.engine.cpu.team import HERE_ELEMENTS, Call, Team
from daemon.engine.layers.ops import Activation, Norm, Ops
from daemon.engine.quantised.weight import QuantisedWeight


class CpuOps(Ops):
    """See `Ops`; every tensor is float32."""

    def __init__(self, team: Team, constants: Constants) -> None:
        self._team = team
        self._constants = constants

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        of_added: Norm | None = None,
    ) -> torch.Tensor:
        """See `Ops`."""
        output = torch.empty_like(states)
        call = calls.norm_of(self._constants, states, added, norm, output, of_added)
        self._run(states.numel(), call)
        return output

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """See `Ops`."""
        self._run(states.numel(), calls.norm_of(self._constants, states, None, norm, states))

    def norm_gated(
        self, values: torch.Tensor, gates: torch.Tensor, norm: Norm, sigmoid: bool = False
    ) -> torch.Tensor:
        """See `Ops`."""
        output = torch.empty(gates.shape)
        parts = values.contiguous(), gates, norm, self._constants, output
        self._run(values.numel(), mixer_calls.norm_gated(*parts, sigmoid))
        return output

    def gate_normed(self, values: torch.Tensor, gates: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `Ops`."""
        output = torch.empty(gates.shape)
        parts = values.contiguous(), gates, norm, self._constants, output
        self._run(values.numel(), mixer_calls.gate_normed(*parts))
        return output

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if weight.order is not None or not can_multiply(weight):
            return super().look_up(weight, tokens)
        return look_up(weight, tokens.int(), self._team)

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self._run(states.numel(), calls.rotate(states, cos, sin))

    def turn_pairs(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self._run(states.numel(), latent.turn(states, cos, sin))

    def relu_squared(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self._activated(states, Activation.RELU_SQUARED)

    def gelu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self._activated(states, Activation.GELU)

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self._activated(states, Activation.SILU)

    def _activated(self, states: torch.Tensor, activation: Activation) -> torch.Tensor:
        output = states.new_empty(len(states), activation.width(states.shape[1]))
        self._run(2 * states.numel(), mixer_calls.activated(states, output, activation))
        return output

    def _run(self, elements: int, call: Call) -> None:
        run = self._team.run_here if elements <= HERE_ELEMENTS else self._team.run
        run(call)

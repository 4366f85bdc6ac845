"""`daemon.engine.layers.ops.Ops` for float32 on the CPU, each one call of a compiled kernel."""

import torch

from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.quantised import can_multiply, look_up
from daemon.engine.cpu.team import HERE_ELEMENTS, Call, Team
from daemon.engine.layers.ops import Norm, Ops
from daemon.engine.quantised.weight import QuantisedWeight


class CpuOps(Ops):
    """See `Ops`; every tensor is float32."""

    def __init__(self, team: Team, constants: Constants) -> None:
        self._team = team
        self._constants = constants

    def norm(self, states: torch.Tensor, added: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """See `Ops`."""
        output = torch.empty_like(states)
        address = self._constants.address(norm.epsilon)
        self._run(states.numel(), calls.norm(states, added, norm.weight, address, output))
        return output

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """See `Ops`."""
        address = self._constants.address(norm.epsilon)
        self._run(states.numel(), calls.norm(states, None, norm.weight, address, states))

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if weight.order is not None or not can_multiply(weight):
            return super().look_up(weight, tokens)
        return look_up(weight, tokens.int(), self._team)

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self._run(states.numel(), calls.rotate(states, cos, sin))

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        output = states.new_empty(states.shape[0], states.shape[1] // 2)
        self._run(2 * states.numel(), calls.silu_mul(states, output))
        return output

    def _run(self, elements: int, call: Call) -> None:
        run = self._team.run_here if elements <= HERE_ELEMENTS else self._team.run
        run(call)

"""`daemon.engine.ops.Ops` for float32 on the CPU, each one call of a compiled kernel."""

from typing import Any

import numpy as np
import torch

from daemon.engine.cpu import kernels
from daemon.engine.cpu.team import Team, run_here

_HERE_ELEMENTS = 16 * 1024
"""Up to so many elements the calling thread is faster alone."""


class CpuOps:
    """See `Ops`; every tensor is float32."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._epsilons: dict[float, np.ndarray] = {}
        self._addresses: dict[float, int] = {}

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        count, width = states.shape
        output = torch.empty_like(states)
        self._run(
            count * width,
            kernels.rms_norm,
            states.data_ptr(),
            states.stride(0),
            1,
            0 if added is None else added.data_ptr(),
            count,
            width,
            weight.data_ptr(),
            self._address(epsilon),
            output.data_ptr(),
            width,
        )
        return output

    def norm_heads(self, states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
        """See `Ops`."""
        count, heads, head_dim = states.shape
        self._run(
            states.numel(),
            kernels.rms_norm,
            states.data_ptr(),
            states.stride(0),
            heads,
            0,
            count * heads,
            head_dim,
            weight.data_ptr(),
            self._address(epsilon),
            states.data_ptr(),
            states.stride(0),
        )

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        count, heads, head_dim = states.shape
        self._run(
            states.numel(),
            kernels.rotate,
            states.data_ptr(),
            states.stride(0),
            count,
            heads,
            head_dim,
            cos.shape[-1],
            cos.data_ptr(),
            sin.data_ptr(),
        )

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        count, width = states.shape[0], states.shape[1] // 2
        output = torch.empty(count, width)
        self._run(
            2 * states.numel(),
            kernels.silu_mul,
            states.data_ptr(),
            count,
            width,
            output.data_ptr(),
        )
        return output

    def _run(self, elements: int, kernel: Any, *arguments: int) -> None:
        run = run_here if elements <= _HERE_ELEMENTS else self._team.run
        run(kernel, *arguments)

    def _address(self, epsilon: float) -> int:
        if epsilon not in self._addresses:
            self._epsilons[epsilon] = np.array([epsilon], np.float32)
            self._addresses[epsilon] = self._epsilons[epsilon].ctypes.data
        return self._addresses[epsilon]

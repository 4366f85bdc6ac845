"""Norms on the CPU are as near to the exact ones as float32 allows, on both sides of them."""

import torch

from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.ops import CpuOps
from daemon.engine.cpu.team import Team
from daemon.engine.layers.ops import Norm


def test_their_errors_are_not_all_of_one_sign() -> None:
    """A row's factor is wrong for all of it: where what a state gives nearly cancels out, such
    errors are all that is left.
    """
    chance = torch.Generator().manual_seed(3)
    states = torch.rand(4096, 16, generator=chance) + 0.5
    norm = Norm(torch.ones(16), 1e-6)
    found = CpuOps(Team(run_program), Constants({})).norm(states.clone(), None, norm)
    exact = Norm(torch.ones(16, dtype=torch.float64), 1e-6)(states.double())
    errors = found / exact - 1
    assert float(errors.mean().abs()) < 2e-9
    assert float(errors.abs().max()) < 1.5e-7

"""Compiled recurrent layers give what torch gives, and leave the same states in their pages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.recurrence import MakeRecurrence
from daemon.engine.cpu.team import Team
from daemon.engine.layers.recurrent.recurrence import TorchRecurrence
from tests.engine.layers.recurrent.steps import LAYERS, NUM_SLOTS, walked
from tests.soak import tries

COUNTS = st.lists(st.sampled_from([0, 1, 1, 2, 5, 70]), min_size=NUM_SLOTS, max_size=NUM_SLOTS)
STEPS = st.lists(COUNTS, min_size=1, max_size=4)


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=tries(8, 200))
@given(steps=STEPS)
def test_it_is_what_torch_computes(name: str, steps: list[list[int]]) -> None:
    ours = walked(LAYERS[name], MakeRecurrence(Team(run_program)), steps)
    theirs = walked(LAYERS[name], TorchRecurrence, steps)
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())

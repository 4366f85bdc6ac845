"""The target forward size: where it lies, and how a step is filled up to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.cost.forward_size import FULL_SHARE, forward_size, size_of
from daemon.lab.profiles.load import load_profile
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import LEAST_SHARE, Limits, StepBuilder
from tests.scheduler.test_mlfq import sequence


@given(st.floats(0.0, 1e3), st.integers(1, 500), st.integers(1, 40))
def test_it_is_the_smallest_that_is_nearly_as_fast_as_any(
    base: float, most: int, least: int
) -> None:
    """A step takes a base and one for each token; its size solves s / (b + s) = 0.9 m / (b + m)."""
    most = max(most, least)
    found = forward_size(lambda size: base + size, most, least)
    full = FULL_SHARE * most / (base + most)
    assert found.num_tokens / (base + found.num_tokens) >= full - 1e-12
    smaller = found.num_tokens - 1
    assert smaller < least or smaller / (base + smaller) < full + 1e-12
    assert found.levelled == (2 * found.num_tokens <= most)


def test_a_step_that_is_slow_for_its_size_is_no_target() -> None:
    """The edge of a tile: 65 tokens take as long as 128."""
    found = forward_size(lambda size: 1.0 + (size - 1) // 64, 128)
    assert found.num_tokens == 58, "of the first tile, with 0.9 of its rate"
    assert forward_size(lambda size: 1.0 + (size - 1) // 64, 128, 65).num_tokens == 116


@pytest.mark.parametrize(
    ("most", "budget", "told"),
    [(1024, 2048, 181), (1024, 100, 100), (40, 2048, 0), (40, 40, 32), (1, 1, 1)],
)
def test_too_little_that_is_known_tells_nothing(most: int, budget: int, told: int) -> None:
    """Up to 40 tokens it has not levelled off; that is enough for steps of 40."""
    assert forward_size(lambda size: 25.0 + size, most).within(budget) == told


def test_a_profile_has_one() -> None:
    assert size_of(load_profile("opt-13b@a100-80g")).num_tokens == 556


def test_prompts_fill_a_step_up_to_it_and_have_a_least_share() -> None:
    limits = Limits(64, 2048, 2048, forward_tokens=400)
    assert limits.step_tokens == 400
    assert limits.prompt_tokens(0) == 400 and limits.prompt_tokens(150) == 250
    assert limits.prompt_tokens(390) == LEAST_SHARE * 400
    assert Limits(64, 420, 420, forward_tokens=400).prompt_tokens(390) == 30, "the budget holds"
    assert Limits(64, 300, 300, forward_tokens=400).step_tokens == 300
    plain = Limits(64, 512, 512)
    assert plain.step_tokens == 512 and plain.prompt_tokens(510) == 2


def test_chunks_leave_what_decodes_beside_them_take() -> None:
    table = SlotTable(8)
    slots = [table.join(sequence(600, number), 0) for number in range(3)]
    step = StepBuilder(Limits(64, 2048, 2048, forward_tokens=400), POLICIES["packed"], table)
    step.add_prompt(slots[0], step.chunk(300, 1), 1)
    assert step.room == 100 and step.chunk(600, 1) == 100
    step.add_prompt(slots[1], 100, 1)
    assert step.room == 0 and step.chunk(600, 1) == 0
    assert step.budget == 2048 - 400, "decodes may go beyond it"

"""What prompts may have of a step beside streams: what those leave, and what first tokens need."""

import numpy as np
import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.order import Order
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.prompt_room import AIM, even_room, prompt_room
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.slo import Slo
from tests.scheduler.test_mlfq import sequence

MOST = 512
STEP_S, TOKEN_S = 0.020, 1e-4
TPOT_S = 0.040
LOOSE = Slo(1e6, TPOT_S)
"""No first token is in a hurry."""


class Step:
    """Streams that draw, and prompts that wait or have begun."""

    def __init__(self, policy: str = "gittins", step_s: float = STEP_S) -> None:
        self.table = SlotTable(8)
        self.order = Order(0, POLICIES[policy](), self.table)
        self.order.step_time = StepTimeModel(step_s, TOKEN_S)
        self.streams: list[int] = []
        self.begun: list[int] = []

    def stream(self, first_s: float, drawn: int, left: int = 100) -> None:
        """One that has drawn so many tokens since its first."""
        one = sequence(10, len(self.streams))
        one.first_token_s = first_s
        slot = self.table.join(one, 10)
        self.table.known[slot] += drawn
        self.table.likely_end[slot] = 10 + drawn + left
        self.streams.append(slot)

    def wait(self, tokens: int, arrived_s: float) -> None:
        one = sequence(tokens, 100 + len(self.order.waiting))
        one.arrived_s = arrived_s
        self.order.enqueue(one, arrived_s, arrived_s)

    def begin(self, tokens: int, computed: int, arrived_s: float) -> None:
        one = sequence(tokens, 200 + len(self.begun))
        one.arrived_s = arrived_s
        self.begun.append(self.table.join(one, computed))

    def room(self, slo: Slo = LOOSE, now: float = 10.0, most: int = MOST) -> int:
        slots = np.array(self.streams, np.intp), np.array(self.begun, np.intp)
        return prompt_room(self.order, most, *slots, slo, now)


def tokens_of(step_s: float) -> int:
    """Prompt tokens that fit a step of this time, beside streams that take STEP_S."""
    return round((step_s - STEP_S) / TOKEN_S)


def test_a_stream_that_is_as_slow_as_it_may_be_leaves_a_step_of_the_promised_time() -> None:
    step = Step()
    step.wait(1000, 10.0)
    step.stream(10.0 - 9 * AIM * TPOT_S, 10)
    assert step.room() == pytest.approx(tokens_of(AIM * TPOT_S), abs=1)


def test_a_stream_that_is_ahead_leaves_what_it_has_saved_up_and_the_tightest_counts() -> None:
    step = Step()
    step.wait(1000, 10.0)
    step.stream(10.0 - 9 * 0.035, 10)
    saved_s = AIM * TPOT_S * 10 - 9 * 0.035
    assert step.room() == pytest.approx(tokens_of(saved_s), abs=1)
    step.stream(10.0 - 99 * 0.025, 100)
    assert step.room() == pytest.approx(tokens_of(saved_s), abs=1)
    step.stream(-1.0, 1)  # its first token is on its way
    assert step.room() == pytest.approx(tokens_of(AIM * TPOT_S), abs=1)


def test_streams_that_are_far_ahead_leave_all() -> None:
    step = Step()
    step.wait(1000, 10.0)
    step.stream(10.0 - 99 * 0.025, 100)
    assert step.room() == MOST


def test_one_that_is_past_saving_has_no_say() -> None:
    step = Step()
    step.wait(1000, 10.0)
    step.stream(10.0 - 20 * 0.2, 20, left=5)
    assert step.room() == MOST
    slow = Step(step_s=0.050)  # no step keeps it
    slow.wait(1000, 10.0)
    slow.stream(9.9, 1)
    assert slow.room() == MOST


def test_prompts_always_have_a_part() -> None:
    step = Step(step_s=0.039)
    step.wait(1000, 10.0)
    step.stream(10.0 - 9 * 0.039, 10)
    assert step.room() == MOST * LEAST_SHARE
    assert step.room(most=2) == 1
    assert step.room(most=1) == 1 and step.room(most=0) == 0


def test_a_first_token_that_is_due_has_the_steps_that_it_needs() -> None:
    """900 tokens in 0.3 s, once a step that runs is over: three steps of 300 take 0.15 s."""
    step = Step()
    step.stream(10.0 - 9 * TPOT_S, 10)
    step.wait(900, 10.0)
    full_s = STEP_S + MOST * TOKEN_S
    for tokens in (200, 300, 400):
        ttft_s = full_s + 900 / tokens * (STEP_S + tokens * TOKEN_S)
        assert step.room(Slo(ttft_s, TPOT_S)) == pytest.approx(tokens, abs=1)
    assert step.room(Slo(0.9 * full_s, TPOT_S)) < 200, "it cannot be in time any more"


def test_a_first_token_that_only_the_longest_steps_bring_in_time_has_them() -> None:
    """900 tokens take 0.125 s in the longest steps; one that runs may take 0.07 s before them."""
    step = Step()
    step.stream(10.0 - 9 * TPOT_S, 10)
    step.wait(900, 10.0)
    fewest_s = 900 / MOST * STEP_S + 900 * TOKEN_S
    for more_s in (0.001, 0.03, STEP_S + MOST * TOKEN_S):
        assert step.room(Slo(fewest_s + more_s, TPOT_S)) == pytest.approx(MOST, abs=1)
    assert step.room(Slo(fewest_s - 0.01, TPOT_S)) < 200, "it cannot be in time any more"


def test_those_in_line_need_what_comes_before_them_too() -> None:
    step = Step()
    step.stream(10.0 - 9 * TPOT_S, 10)
    step.begin(600, 400, 9.9)
    step.wait(700, 9.9)
    full_s = STEP_S + MOST * TOKEN_S
    ttft_s = 0.1 + full_s + 3 * (STEP_S + 300 * TOKEN_S)
    assert step.room(Slo(ttft_s, TPOT_S)) == pytest.approx(300, abs=1)


def test_what_cannot_be_told_is_left_alone() -> None:
    """Before any step is known, and under policies that compute whole prompts or prompts alone."""
    for step in (Step("vllm"), Step("splitwise"), Step()):
        if step.order.policy.name == "gittins":
            step.order.step_time = StepTimeModel()
        step.stream(10.0 - 9 * TPOT_S, 10)
        step.wait(1000, 10.0)
        assert step.room() == MOST


def rooms(pending: int, num_stages: int, step_s: float = STEP_S) -> list[int]:
    """Prompt tokens of each step of a pipeline that computes so many, all steps in flight."""
    step, found = Step(step_s=step_s), list[int]()
    begun = np.array([step.table.join(sequence(pending, 1), 0)], np.intp)
    while (left := pending - sum(found)) > 0:
        step.table.computed[begun] = pending - left
        before = found[-1] if found else 0
        decodes = np.zeros(0, np.intp)
        room = even_room(step.order, MOST, decodes, begun, before, num_stages)
        found.append(min(room, left))
    return found


@pytest.mark.parametrize("pending", [2, 100, 511, 700, 5000])
@pytest.mark.parametrize("num_stages", [2, 3, 8])
def test_steps_of_a_pipeline_have_as_many_prompt_tokens(pending: int, num_stages: int) -> None:
    found = rooms(pending, num_stages)
    assert sum(found) == pending and max(found) <= MOST
    assert max(found) - min(found) <= len(found)
    best = (num_stages - 1) * pending * TOKEN_S / STEP_S
    assert len(found) == max(round(best**0.5), -(-pending // MOST), 1)


def test_prompts_that_take_no_time_are_not_cut() -> None:
    assert rooms(400, 4, step_s=1e6) == [400]

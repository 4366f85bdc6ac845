"""Prompts in TetriInfer's orders: sixteen at a time, and how long they wait."""

import pytest

from daemon.scheduler.policies.prompt_order import SCHED_BATCH
from daemon.state.request import sequence_id
from tests.core.driver import Driver, configured

LONG, SHORT, CHUNK = 96, 16, 32
PROMPTS = 4 * [LONG, SHORT, SHORT, SHORT]


def first_tokens(policy: str, lengths: list[int], **changes: object) -> list[int]:
    """The step that brought each one's only token; all came while the worker was away."""
    fields = {"max_batch_tokens": CHUNK, "prefill_chunk": CHUNK, "max_running": 32, **changes}
    driver = Driver(configured(policy, prefix_cache=False, **fields))
    driver.lose(0)
    for number, length in enumerate(lengths):
        driver.arrive([number] * length, 1)
    driver.ready(0, 400)
    steps: dict[int, int] = {}
    for step in range(1, 1000):
        if not driver.answer():
            break
        steps |= dict.fromkeys(driver.ended.keys() - steps.keys(), step)
    driver.check_nothing_left()
    return [steps[sequence_id(number, 0)] for number in range(len(lengths))]


@pytest.mark.parametrize(
    ("policy", "mean_steps"), [("sarathi", 10.75), ("prompt_sjf", 6.0), ("prompt_ljf", 13.5)]
)
def test_mean_waiting_of_a_batch_as_worked_out_by_hand(policy: str, mean_steps: float) -> None:
    """Chunks of 32: a long prompt takes three, two short ones share one. First come first served,
    the groups of four end with steps 3 4 4 5, 8 8 9 9, 12 13 13 14 and 17 17 18 18. Shortest first,
    the short ones end with steps 1 1 to 6 6, the long ones with 9, 12, 15 and 18; longest first,
    those with 3, 6, 9 and 12, and the short ones with 13 13 to 18 18.
    """
    steps = first_tokens(policy, PROMPTS)
    assert sum(steps) / len(steps) == mean_steps
    assert max(steps) == 18, "the last one ends when all is computed, in any order"


@pytest.mark.parametrize("policy", ["prompt_sjf", "prompt_ljf"])
def test_nobody_of_a_later_batch_overtakes_an_earlier_one(policy: str) -> None:
    steps = first_tokens(
        policy, [length for length in (SHORT, LONG, 1) for _ in range(SCHED_BATCH)]
    )
    each = [steps[first : first + SCHED_BATCH] for first in range(0, len(steps), SCHED_BATCH)]
    assert max(each[0]) <= min(each[1]) and max(each[1]) <= min(each[2])


def test_equal_prompts_go_by_arrival() -> None:
    steps = first_tokens("prompt_sjf", [CHUNK] * 8)
    assert steps == list(range(1, 9))

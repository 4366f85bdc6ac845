"""Running sequences go on where layers have windows: newcomers leave them a block of all groups."""

import pytest

from tests.core.driver import Driver, configured


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
@pytest.mark.parametrize("num_pages", [20, 22, 24])
def test_prompts_leave_the_pages_with_which_one_that_runs_can_grow(
    policy: str, num_pages: int
) -> None:
    """Else they come back as often as they are preempted for these pages, and nothing goes on."""
    config = configured(
        policy, max_running=4, max_batch_tokens=40, prefill_chunk=40, max_len=48, depth=2
    )
    driver = Driver(config, num_pages, windows=(0, 0, 8))
    for number, (prompt, answer) in enumerate([(12, 16), (8, 16), (8, 4), (8, 4)]):
        driver.arrive([number] * prompt, answer)
    driver.settle(400)
    driver.check_nothing_left()

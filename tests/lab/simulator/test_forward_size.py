"""The target forward size in a simulation: a profile's own, where the policy asks for it."""

import pytest

from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.run import forward_tokens
from tests.core.driver import configured


@pytest.mark.parametrize(
    ("policy", "budget", "told"),
    [("synced", 2048, 556), ("synced", 400, 400), ("sarathi", 2048, 0)],
)
def test_a_worker_says_that_of_its_profile(policy: str, budget: int, told: int) -> None:
    config = configured(policy, max_batch_tokens=budget)
    assert forward_tokens(config, [load_profile("opt-13b@a100-80g")]) == [told]

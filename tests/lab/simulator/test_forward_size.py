"""The target forward size in a simulation: a profile's own, where the policy asks for it."""

import msgspec
import pytest

from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.run import forward_tokens
from daemon.state.role import Role
from tests.core.driver import configured


@pytest.mark.parametrize(
    ("policy", "budget", "told"),
    [("packed", 2048, 556), ("packed", 400, 400), ("sarathi", 2048, 0)],
)
def test_a_worker_says_that_of_its_profile(policy: str, budget: int, told: int) -> None:
    config = configured(policy, max_batch_tokens=budget)
    assert forward_tokens(config, [load_profile("opt-13b@a100-80g")]) == [told]


@pytest.mark.parametrize(
    ("roles", "own", "told"),
    [("1:1", True, [1011, 0]), ("auto", True, [1011] * 2), ("1:1", False, [0, 0])],
)
def test_instances_that_may_compute_prompts_for_others_know_theirs(
    roles: str, own: bool, told: list[int]
) -> None:
    config = configured(instances=2, max_batch_tokens=512, roles="auto" if roles == "auto" else "")
    given = (Role.PREFILL, Role.DECODE) if roles == "1:1" else (Role.MIXED, Role.MIXED)
    instances = tuple(
        msgspec.structs.replace(instance, role=role, budget_is_own=own)
        for instance, role in zip(config.instances, given, strict=True)
    )
    config = msgspec.structs.replace(config, instances=instances)
    assert forward_tokens(config, [load_profile("llama-2-70b@h100-tp8")] * 2) == told

"""Settings beside each other, and the orders that lead from one to another."""

import pytest

from daemon.core.values.events import BudgetChosen, FlipOrdered, PolicyChosen, RolesChosen
from daemon.lab.autoplan.settings import (
    LiveSettings,
    event_of,
    neighbours,
    orders,
    smaller_budgets,
)
from daemon.lab.planner.candidate import CandidatePool, Knobs
from daemon.protocol.control import ChooseBudget, ChoosePolicy, ChooseRoles, Flip
from daemon.state.role import AUTO, Role

M, P, D = Role.MIXED, Role.PREFILL, Role.DECODE
NAMES = ("a", "b", "c")


def settings(
    *roles: Role, policy: str = "vllm", mode: str = "mixed", budget: int = 0
) -> LiveSettings:
    return LiveSettings(policy=policy, roles=roles, mode=mode, budget=budget)


def test_neighbours_are_all_other_policies_and_roles() -> None:
    present = settings(M, M, M)
    found = list(neighbours(present, ("vllm", "gittins"), may_split=True))
    assert found[0] == present
    assert len(found) == len(set(found)) == 2 * 4
    alone = list(neighbours(settings(M), ("vllm", "gittins"), may_split=True))
    assert [each.policy for each in alone] == ["vllm", "gittins"]
    whole = list(neighbours(present, ("vllm", "gittins"), may_split=False))
    assert all(each.roles == (M, M, M) and each.mode == "mixed" for each in whole)


def test_budgets_are_chosen_with_the_present_policy_and_roles() -> None:
    assert smaller_budgets(512) == (256, 128, 64) and smaller_budgets(200) == (100,)
    present = settings(M, M, budget=128)
    found = list(neighbours(present, ("vllm", "gittins"), may_split=True, budgets=(256, 128)))
    others = [each for each in found if each.budget != 128]
    assert [each.budget for each in others] == [0, 256]
    assert {(each.policy, each.roles) for each in others} == {("vllm", (M, M))}
    assert len(found) == len(set(found)) == 2 * 3 + 2
    assert present.text == "vllm, budget 128, 2 mixed"


@pytest.mark.parametrize("present", [settings(P, D, D), settings(M, M, M, mode=AUTO)])
def test_roles_stay_where_they_may_not_be_split(present: LiveSettings) -> None:
    """An operator has set them."""
    found = list(neighbours(present, ("vllm", "gittins"), may_split=False))
    assert [each.policy for each in found] == ["vllm", "gittins"]
    assert {(each.roles, each.mode) for each in found} == {(present.roles, present.mode)}


def test_few_instances_change_their_roles() -> None:
    found = {each.roles for each in neighbours(settings(D, P, D), ("vllm",), may_split=True)}
    assert found == {(D, P, D), (M, M, M), (P, P, D)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (settings(M, M, M), settings(M, M, M), []),
        (settings(M, M, M), settings(M, M, M, policy="sarathi"), [ChoosePolicy("sarathi")]),
        (
            settings(M, M, M),
            settings(P, M, D),
            [Flip("a", "prefill", wait_s=0.0), Flip("c", "decode", wait_s=0.0)],
        ),
        (settings(P, D, D), settings(M, M, M, mode=AUTO), [ChooseRoles(AUTO)]),
        (settings(M, M, M), settings(M, M, M, budget=64), [ChooseBudget(64)]),
        (settings(M, M, M, budget=64), settings(M, M, M), [ChooseBudget(0)]),
        (
            settings(M, M, M, mode=AUTO),
            settings(M, M, D),
            [
                ChooseRoles("mixed"),
                *(Flip(n, r.value, wait_s=0.0) for n, r in zip(NAMES, (M, M, D), strict=True)),
            ],
        ),
    ],
)
def test_orders_are_those_that_differ(
    before: LiveSettings, after: LiveSettings, expected: list[object]
) -> None:
    assert orders(before, after, NAMES) == expected


def test_orders_are_the_cores_events() -> None:
    assert event_of(ChoosePolicy("vllm"), NAMES, 2.0) == PolicyChosen(2.0, "vllm")
    assert event_of(ChooseBudget(64), NAMES, 2.0) == BudgetChosen(2.0, 64)
    assert event_of(ChooseRoles(AUTO), NAMES, 2.0) == RolesChosen(2.0, AUTO)
    assert event_of(Flip("b", "decode"), NAMES, 2.0) == FlipOrdered(2.0, 1, D, "plan")


def test_settings_are_simulated_as_a_candidate() -> None:
    unit = CandidatePool(profile="x", device="toy")
    found = settings(D, P, D).candidate(unit, Knobs(max_batch_tokens=64))
    assert {(pool.role, pool.count) for pool in found.pools} == {("prefill", 1), ("decode", 2)}
    assert (found.knobs.policy, found.knobs.max_batch_tokens) == ("vllm", 64)
    small = settings(M, budget=16)
    assert small.candidate(unit, Knobs(max_batch_tokens=64)).knobs.max_batch_tokens == 16
    by_load = settings(M, M, M, mode=AUTO).candidate(unit)
    assert [(pool.role, pool.count) for pool in by_load.pools] == [("mixed", 3)]
    assert by_load.roles == AUTO

"""The papers' searches: their worked examples, and toys that have one answer."""

from pathlib import Path

import msgspec
import pytest

from daemon.lab.planner.aladdin import (
    compute_fit,
    num_workers,
    t_max,
    worker_config,
    worker_fit,
)
from daemon.lab.planner.bounds import Mix, bound
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate, Space, knobs_of
from daemon.lab.planner.distserve import (
    PhaseGoodput,
    filled,
    high_affinity,
    replicated,
    simu_decode,
    simu_prefill,
)
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import WorkloadSlice, rows_of
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.plan import plan
from daemon.lab.planner.session import Session
from tests.lab.planner.toys import toy_problem, toy_units


def phase(goodput_rps: float) -> PhaseGoodput:
    unit = CandidatePool(profile="opt-13b@a100-80g", device="a100-80g")
    return PhaseGoodput(unit=unit, goodput_rps=goodput_rps)


def test_distserves_first_example() -> None:
    """Section 1, Figure 1: prefill 5.6 and decode 10 requests/s a device: two of one and one of the
    other serve 10, which is 3.3 for each of three devices.
    """
    assert replicated(phase(5.6), phase(10.0), 10.0) == (2, 1)
    assert filled(phase(5.6), phase(10.0), {"a100-80g": 3}) == (2, 1)
    assert replicated(phase(5.6), phase(10.0), 20.1) == (4, 3)
    with pytest.raises(PlannerError, match="do not fit the devices"):
        filled(phase(5.6), phase(10.0), {"a100-80g": 1})


def test_each_phase_has_the_parallelism_that_serves_it_best(tmp_path: Path) -> None:
    """Two devices together are 1.67 times one: one device serves more for each of them. A TTFT that
    one device cannot keep makes prefill take two, and decode keeps one.
    """
    units = toy_units(tmp_path, 1, 2)
    knobs = Knobs(policy="vllm", max_batch_tokens=256)
    problem = toy_problem(tmp_path, prompt=120)
    easy, hard = (
        msgspec.structs.replace(problem, goal=msgspec.structs.replace(problem.goal, ttft_s=ttft_s))
        for ttft_s in (0.4, 0.026)
    )
    prefill, decode = high_affinity(Session(), easy, units, knobs, 100)
    assert (prefill.unit.tp, decode.unit.tp) == (1, 1)
    prefill, decode = high_affinity(Session(), hard, units, knobs, 60)
    assert (prefill.unit.tp, decode.unit.tp) == (2, 1)


def test_decode_is_tried_behind_prefill_instances_enough(tmp_path: Path) -> None:
    """Long prompts and short answers: one prefill instance would keep decode waiting, and its rate
    would be taken for decode's.
    """
    (unit,) = toy_units(tmp_path, 1)
    problem = toy_problem(tmp_path, prompt=120, output=6)
    goal = msgspec.structs.replace(problem.goal, ttft_s=10.0)
    problem = msgspec.structs.replace(problem, goal=goal)
    config, part = PlanCandidate(pools=(unit,), knobs=Knobs(policy="vllm")), WorkloadSlice(0, 60)
    prefill_rps = simu_prefill(Session(), problem, config, part)
    assert simu_decode(Session(), problem, config, part) > 2.0 * prefill_rps


def test_a_phase_alone_has_a_bound(tmp_path: Path) -> None:
    (unit,) = toy_units(tmp_path, 1)
    problem = toy_problem(tmp_path)
    mix = Mix.of(rows_of(problem, WorkloadSlice(0, 100), 256))
    phases = {
        role: bound(problem, PlanCandidate(pools=(msgspec.structs.replace(unit, role=role),)), mix)
        for role in ("prefill", "decode")
    }
    assert {role: each.binds for role, each in phases.items()} == {role: role for role in phases}
    pools = tuple(msgspec.structs.replace(unit, role=role) for role in phases)
    both = bound(problem, PlanCandidate(pools=pools), mix)
    assert both.rps == min(each.rps for each in phases.values()) > 0.0


@pytest.mark.parametrize("affinity", ["high", "low"])
def test_a_placement_is_verified_as_a_whole(affinity: str, tmp_path: Path) -> None:
    space = Space(units=toy_units(tmp_path, 1), devices={"toy": 2}, knobs=knobs_of(("vllm",)))
    found = plan(
        Session(),
        toy_problem(tmp_path),
        Objective(),
        space,
        rungs=(40,),
        search="distserve",
        affinity=affinity,
    )
    assert [pool.role for pool in found.best.candidate.pools] == ["prefill", "decode"]
    assert found.best.goodput_rps > 0.0


def test_equal_power_buys_more_under_a_cap_that_decode_does_not_feel(tmp_path: Path) -> None:
    """Splitwise section IV-D: 150 W are one device, or one and another at half its limit."""
    space = Space(
        units=toy_units(tmp_path, 1),
        devices={"toy": 3},
        knobs=knobs_of(("vllm",), (256,)),
        caps=(1.0, 0.5),
        partial=True,
    )
    objective = Objective(most_power_w=150.0)
    session = Session()
    problem = toy_problem(tmp_path, output=20)
    found = plan(session, problem, objective, space, rungs=(40, 80), search="splitwise")
    assert all(each.candidate.power_w() <= 150.0 for each in found.verified)
    assert session.dropped["watts"] > 0
    assert [pool.power_cap for pool in found.best.candidate.pools][-1] == 0.5


def test_aladdins_equations() -> None:
    """Eq. 5 and 7 are found again from points on them; the smaller term of eq. 6 binds."""
    k4, c4 = compute_fit([(1, 0.05), (2, 0.03), (4, 0.02)])
    assert (k4, c4) == (pytest.approx(0.04), pytest.approx(0.01))
    k5, c5 = worker_fit([(rate, 2 * rate + 1) for rate in (1, 2, 3, 4, 5)])
    assert (k5, c5) == (pytest.approx(2.0), pytest.approx(1.0))
    assert num_workers(5.2, k5, c5) == 12
    assert t_max(2, 100.0, 0.05, 60.0, 0.1) == (pytest.approx(300.0), "slo")
    assert t_max(2, 10.0, 0.05, 60.0, 0.1) == (pytest.approx(100.0), "kv")


def test_the_worker_of_most_tokens_for_each_device(tmp_path: Path) -> None:
    """T_max by hand: B requests a step of 5 ms + 0.2 ms each + contexts, within 20 ms."""
    problem = toy_problem(tmp_path)
    mix = Mix.of(rows_of(problem, WorkloadSlice(0, 100), 256))
    single, double = (worker_config(problem, unit, mix) for unit in toy_units(tmp_path, 1, 2))
    context = mix.mean_prompt + mix.mean_output / 2
    by_hand = int((20e-3 - 5e-3) / (2e-4 + 1e-6 * context))
    assert single.binds == "slo" and single.batch == pytest.approx(by_hand, abs=1)
    assert single.t_max == pytest.approx(single.batch / 20e-3)
    assert double.t_max == pytest.approx(double.batch / 2 / 20e-3)
    assert double.t_max < single.t_max  # twice the devices do not serve twice the batch


def test_the_number_of_workers_is_fitted_at_five_rates(tmp_path: Path) -> None:
    space = Space(units=toy_units(tmp_path, 1), devices={"toy": 9}, knobs=knobs_of(("vllm",)))
    objective = Objective(rate_rps=60.0)
    problem = toy_problem(tmp_path)
    found = plan(Session(), problem, objective, space, rungs=(40,), search="aladdin")
    k5, c5 = found.workers
    assert found.best.candidate.num_devices == num_workers(60.0, k5, c5)
    with pytest.raises(PlannerError, match="needs --rate and --slo-tpot"):
        plan(Session(), problem, Objective(), space, rungs=(40,), search="aladdin")

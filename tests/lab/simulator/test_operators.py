"""Operators of simulated steps: their calls, inputs and times add up to the steps."""

from pathlib import Path

import msgspec
import pytest

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Fit, OperatorCurve, Operators, OperatorsAlone, PhaseFit
from daemon.cost.step_cost import chosen, step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.doubts import doubts, error_doubt
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.report.render import as_text
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.checks import check, check_profiles
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioError
from tests.lab.simulator.made import CURVES, phases, prepared, profile, workload

PHASES = phases((0.004, 1e-5, 1e-8), (0.003, 1e-6, 1e-5))
WORKS = [
    StepWork(3, 90, (), 3),
    StepWork(0, 0, ((40, 0), (16, 64)), 2),
    StepWork(2, 70, ((40, 8),), 2),
]


@pytest.mark.parametrize("step", [PHASES, CURVES])
@pytest.mark.parametrize("work", WORKS)
def test_the_parts_of_a_step_are_the_step(step: PhaseFit | Operators, work: StepWork) -> None:
    cost = step_cost(step)
    parts = list(cost.parts(work))
    assert sum(part.time_s for part in parts) == pytest.approx(cost.step_s(work))
    assert all(part.size > 0 for part in parts)


def test_the_report_has_each_operator() -> None:
    plan = prepared([profile(CURVES)], workload([0.0, 0.01], [40, 30], [20, 30]))
    log = run(plan, Options(operators=True))
    report = report_of(plan, log)
    (instance,) = report.instances
    operators = instance.operators
    names = {"token-level", "prefill attention", "decode attention", "sampling", "rows", "overhead"}
    assert set(operators) == names
    busy_s = log.instances[0].busy_s
    assert sum(operator.time_s for operator in operators.values()) == pytest.approx(busy_s)
    tokens = operators["token-level"]
    assert tokens.calls * tokens.mean_size == pytest.approx(log.instances[0].tokens)
    assert operators["prefill attention"].calls == 2
    assert "0:tiny@made token-level" in as_text(report)


def test_without_the_wish_there_are_none() -> None:
    plan = prepared([profile(CURVES)], workload([0.0], [40], [20]))
    assert not report_of(plan, run(plan)).instances[0].operators


def line(slope_s: float, fixed_s: float = 0.0) -> Curve:
    return Curve((0.0, 1000.0), (fixed_s, fixed_s + 1000 * slope_s))


def flat(time_s: float) -> Surface:
    return Surface((1.0,), (0.0,), ((time_s,),))


ALONE = OperatorsAlone(
    tokens_s=(OperatorCurve("gate_up", line(1e-5)), OperatorCurve("norm", line(1e-6))),
    sampled_s=(OperatorCurve("head", line(1e-4)),),
    prefill_s=flat(2e-3),
    decode_s=flat(1e-3),
    copied_s=line(1e-5),
    overhead_s=5e-4,
    num_points=12,
    mape=0.08,
)


@pytest.mark.parametrize(
    ("times", "mape", "used"),
    [("operators", 0.01, True), ("steps", 0.5, False), ("", 0.01, False), ("", 0.5, True)],
)
def test_step_times_are_of_the_operators_that_were_chosen(
    times: str, mape: float, used: bool
) -> None:
    fit = msgspec.structs.replace(profile(CURVES).fit, mape=mape)
    measured = chosen(profile(CURVES, operators=ALONE, fit=fit), times)
    assert (measured.operators is not None) is used
    plan = prepared([measured], workload([0.0, 0.01], [40, 30], [20, 30]))
    log = run(plan, Options(operators=True))
    operators = report_of(plan, log).instances[0].operators
    assert ("gate_up" in operators) is used and ("token-level" in operators) is not used
    busy_s = log.instances[0].busy_s
    assert sum(operator.time_s for operator in operators.values()) == pytest.approx(busy_s)


ERROR = "the error of steps held out is 50%"
SUMS = "the error of the operators' sums on steps held out is 30%"
UNKNOWN = "the error of the operators' sums is not known"


@pytest.mark.parametrize(
    ("times", "of_sums", "reasons"),
    [
        ("", 0.08, ["others"]),  # the sums err less, so they are taken
        ("operators", 0.08, ["others"]),
        ("operators", 0.3, ["others", SUMS]),
        ("operators", 0.0, ["others", UNKNOWN]),
        ("steps", 0.08, [ERROR, "others"]),
        ("", 0.6, [ERROR, "others"]),
    ],
)
def test_doubts_are_of_the_step_times_that_are_taken(
    times: str, of_sums: float, reasons: list[str]
) -> None:
    fit = Fit(num_points=12, mape=0.5, lacks=(error_doubt(0.5), "others"))
    alone = msgspec.structs.replace(ALONE, mape=of_sums)
    measured = profile(CURVES, operators=alone, fit=fit)
    assert doubts(measured, times) == reasons
    assert doubts(chosen(measured, times), times) == reasons, "it may be chosen already"


def test_operators_that_were_not_measured_cannot_be_asked_for() -> None:
    scenario = msgspec.structs.replace(
        prepared([profile(CURVES)], workload([0.0], [4], [4])).scenario, step_times="operators"
    )
    with pytest.raises(ScenarioError, match="no operators measured alone"):
        check_profiles(scenario, scenario.instance, [profile(CURVES)])
    with pytest.raises(ScenarioError, match="step_times must be one of steps, operators"):
        check(msgspec.structs.replace(scenario, step_times="kernels"))


def test_a_profile_is_the_same_from_its_file(tmp_path: Path) -> None:
    made = profile(CURVES, operators=ALONE)
    save_profile(made, tmp_path / "made.json")
    assert load_profile(str(tmp_path / "made.json")) == made
    older = load_profile("opt-13b@a100-80g")
    assert older.operators is None and chosen(older, "") is older

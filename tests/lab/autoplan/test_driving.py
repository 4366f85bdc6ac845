"""A simulated daemon that drives itself: the load grows, and the policy changes with it."""

from pathlib import Path

import numpy as np

from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.search import SettingsSearch
from daemon.lab.autoplan.settings import LiveSettings
from daemon.lab.autoplan.simulated import SimulatedOperator, seen_of
from daemon.lab.planner.candidate import CandidatePool, Knobs, scenario_of
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.run import Options, configured, prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.state.role import Role
from daemon.state.slo import Slo
from tests.lab.planner.toys import toy_units

SLO = Slo(ttft_s=0.1, tpot_s=0.02)
KNOBS = Knobs(max_batch_tokens=256)
START = LiveSettings(policy="vllm", roles=(Role.MIXED,))
PERIOD_S = 12.0


def grown(calm_s: float = 15.0, busy_s: float = 30.0, rate: float = 32.0) -> Workload:
    """A calm load, then one that whole prompts between decodes do not keep up with."""
    chance = np.random.default_rng(1)
    spans = ((0.0, calm_s, 15.0), (calm_s, calm_s + busy_s, rate))
    times_s = np.concatenate(
        [np.sort(chance.uniform(a, b, int((b - a) * each))) for a, b, each in spans]
    )
    return Workload(
        label="grown",
        arrival_s=times_s,
        prompt_tokens=chance.integers(30, 90, times_s.size).astype(np.int32),
        output_tokens=chance.integers(6, 18, times_s.size).astype(np.int32),
        slo_class=np.zeros(times_s.size, np.uint8),
        classes=(SloClass(ttft_s=SLO.ttft_s, tpot_s=SLO.tpot_s),),
    )


def scenario(unit: CandidatePool) -> Scenario:
    spec = WorkloadSpec(name="sharegpt", rate=1.0, classes=grown().classes)
    base = Scenario(workload=spec, instance=(), predictor="none")
    return scenario_of(base, START.candidate(unit, KNOBS))


def kept(log: RequestLog) -> float:
    return float(seen_of(log, SLO, np.inf).kept.mean())


def test_a_daemon_that_drives_itself_serves_a_grown_load_better(tmp_path: Path) -> None:
    """The plan, its prediction and its truth are there; nothing changes while all is kept."""
    unit = toy_units(tmp_path, 1)[0]
    prepared = prepare(scenario(unit), grown())
    names = [instance.name for instance in configured(prepared).instances]
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    driver = SelfDriver(START, names, ("vllm", "sarathi"), search, PERIOD_S)
    operator = SimulatedOperator(driver, names, SLO)
    driven = run(prepared, Options(operator=operator))
    fixed = run(prepared)
    assert kept(driven.requests) > kept(fixed.requests)
    first = operator.plans[0]
    assert first.settings.policy == "sarathi" and first.before == START
    assert first.applied_s > 15.0
    assert first.predicted > first.measured_before
    assert driver.status("").words.startswith("vllm -> sarathi")


def test_a_cancelled_search_changes_nothing(tmp_path: Path) -> None:
    unit = toy_units(tmp_path, 1)[0]
    log = run(prepare(scenario(unit), grown())).requests
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    driver = SelfDriver(START, ("toy",), ("vllm", "sarathi"), search, PERIOD_S)
    seen = seen_of(log, SLO, 44.0)
    assert driver.look(44.0, seen, is_cancelled=lambda: True) == []
    assert (driver.searches, search.requests, driver.pilot.plan) == (0, 0, None)

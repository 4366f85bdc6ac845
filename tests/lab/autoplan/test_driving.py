"""A simulated daemon that drives itself: the load grows, and the policy changes with it."""

from pathlib import Path

import msgspec
import numpy as np

from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.pilot import Pilot, SettingsForecast
from daemon.lab.autoplan.search import (
    LEAST_REQUESTS,
    MOST_REQUESTS,
    REQUESTS_EACH,
    SeenRequests,
    SettingsSearch,
)
from daemon.lab.autoplan.settings import LiveSettings
from daemon.lab.autoplan.simulated import SimulatedOperator, seen_of
from daemon.lab.planner.candidate import CandidatePool, Knobs, scenario_of
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.run import Options, configured, prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.protocol.control import ChoosePolicy
from daemon.state.role import Role
from daemon.state.slo import Slo
from tests.lab.planner.toys import toy_units

SLO = Slo(ttft_s=0.1, tpot_s=0.02)
KNOBS = Knobs(max_batch_tokens=256)
START = LiveSettings(policy="vllm", roles=(Role.MIXED,))
PERIOD_S = 12.0


def grown(calm_s: float = 15.0, busy_s: float = 30.0, rate: float = 36.0) -> Workload:
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


def test_a_plan_whose_queues_build_slowly_is_not_chosen(tmp_path: Path) -> None:
    """A prompt instance that falls behind keeps all TPOTs, and for a hundred requests from an empty
    start all TTFTs as well; with mixed instances a fifth of the requests keep both.
    """
    slo = Slo(ttft_s=0.2, tpot_s=0.012)
    unit, rate = toy_units(tmp_path, 1)[0], 84.0
    workload = grown(0.0, 8.4, rate)
    mixed = LiveSettings(policy="vllm", roles=(Role.MIXED, Role.MIXED))
    split = LiveSettings(policy="vllm", roles=(Role.PREFILL, Role.DECODE))
    spec = WorkloadSpec(name="sharegpt", rate=1.0, classes=workload.classes)
    base = Scenario(workload=spec, instance=(), predictor="none")
    logs = {
        each: run(prepare(scenario_of(base, each.candidate(unit, KNOBS)), workload)).requests
        for each in (mixed, split)
    }
    all_kept = {each: seen_of(log, slo, np.inf).kept for each, log in logs.items()}
    assert all_kept[split][:60].mean() > 0.9 > all_kept[mixed][:60].mean()
    assert all_kept[split][200:].mean() < 0.1 < all_kept[mixed][200:].mean()

    log, search = logs[mixed], SettingsSearch(unit, KNOBS, slo, tmp_path)
    few = seen_of(log, slo, float(log.arrival_s[150]))
    assert search.forecasts(few, mixed, [split]) == []
    seen = seen_of(log, slo, 8.4)
    assert len(seen) >= seen.needed
    forecasts = search.forecasts(seen, mixed, [split])
    assert forecasts
    assert Pilot(mixed).choose(8.4, seen.attainment, forecasts) is None


def test_a_search_needs_more_requests_where_more_are_there_at_once() -> None:
    def seen(stay_s: float) -> SeenRequests:
        ones, yes = np.ones(101, np.int32), np.ones(101, np.bool_)
        stays_s = np.full(101, stay_s)
        return SeenRequests(np.arange(101.0), ones, ones, yes, yes, yes, stays_s)

    assert seen(1.0).needed == LEAST_REQUESTS
    assert seen(50.0).needed == int(REQUESTS_EACH * 50.5)
    assert seen(1e4).needed == MOST_REQUESTS


def test_requests_that_wait_are_of_the_load() -> None:
    """Those without a token are as long as others were, and those under way no shorter."""
    ones = np.ones(5)
    over = np.array([True, True, False, False, True])
    tokens = np.array([4, 8, 6, 0, 0], np.int32)
    seen = SeenRequests(np.arange(5.0), ones.astype(np.int32), tokens, over, over, over, ones)
    assert seen.likely_tokens().tolist() == [4, 8, 6, 8, 4]


def test_a_trial_is_judged_where_few_requests_come(tmp_path: Path) -> None:
    """A plan is undone by what its period shows, also where that is too little for a search."""
    unit = toy_units(tmp_path, 1)[0]
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    driver = SelfDriver(START, ("toy",), ("vllm", "sarathi"), search, PERIOD_S)
    num = 200
    ones, yes = np.full(num, 9, np.int32), np.ones(num, np.bool_)
    kept = np.arange(num) < num // 2  # then the plan comes
    times_s = np.linspace(0.0, 39.8, num)
    seen = SeenRequests(times_s, ones, ones, yes, kept, yes, np.ones(num))
    assert driver.look(20.0, seen.between(0.0, 20.0)) == []
    driver._load_s, driver._since_s, driver._due_s = 0.0, 20.0, 20.0 + PERIOD_S
    other = msgspec.structs.replace(START, policy="sarathi")
    good = [
        SettingsForecast(settings=START, shares=(0.5, 0.5)),
        SettingsForecast(settings=other, shares=(0.9, 0.9)),
    ]
    assert driver.pilot.choose(20.0, 0.5, good) == other
    assert driver.look(30.0, seen.between(0.0, 30.0)) == []  # its period is not over
    assert driver.look(35.0, seen.between(0.0, 35.0)) == [ChoosePolicy("vllm")]
    assert driver.pilot.plan is not None and driver.pilot.plan.state == "undone"

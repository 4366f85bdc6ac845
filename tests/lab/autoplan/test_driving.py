"""A simulated daemon that drives itself: the load grows, and the policy changes with it."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.pilot import Pilot, SettingsForecast
from daemon.lab.autoplan.search import (
    LEAST_ANSWERS,
    LEAST_REQUESTS,
    MOST_REQUESTS,
    STAYS,
    SeenRequests,
    SettingsSearch,
)
from daemon.lab.autoplan.settings import LiveSettings, smaller_budgets
from daemon.lab.autoplan.simulated import SimulatedOperator, seen_of
from daemon.lab.planner.candidate import CandidatePool, Knobs, scenario_of
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.run import Options, configured, prepare, run
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
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


def scenario(unit: CandidatePool, start: LiveSettings = START) -> Scenario:
    spec = WorkloadSpec(name="sharegpt", rate=1.0, classes=grown().classes)
    base = Scenario(workload=spec, instance=(), predictor="none")
    return scenario_of(base, start.candidate(unit, KNOBS))


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


def test_a_smaller_budget_is_found_where_steps_are_too_long(tmp_path: Path) -> None:
    """Long prompts fill steps that decodes wait for; under the one policy there is, half of the
    budget keeps the TPOT.
    """
    slo = Slo(ttft_s=2.0, tpot_s=0.02)
    unit = toy_units(tmp_path, 1)[0]
    start = msgspec.structs.replace(START, policy="sarathi")
    workload = grown(0.0, 60.0, 12.0)
    chance = np.random.default_rng(3)
    count = len(workload)
    workload = replace(
        workload,
        prompt_tokens=chance.integers(120, 220, count).astype(np.int32),
        output_tokens=chance.integers(10, 20, count).astype(np.int32),
    )
    prepared = prepare(scenario(unit, start), workload)
    names = [instance.name for instance in configured(prepared).instances]
    search = SettingsSearch(unit, KNOBS, slo, tmp_path)
    budgets = smaller_budgets(KNOBS.max_batch_tokens)
    driver = SelfDriver(start, names, ("sarathi",), search, PERIOD_S, budgets=budgets)
    operator = SimulatedOperator(driver, names, slo)
    driven = run(prepared, Options(operator=operator))
    assert operator.plans and operator.plans[0].settings.budget in budgets
    shares = [seen_of(log.requests, slo, np.inf).kept.mean() for log in (driven, run(prepared))]
    assert shares[0] > shares[1]


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
    for until_s in (float(log.arrival_s[LEAST_REQUESTS]), 8.4):  # the fewest are repeated
        seen = seen_of(log, slo, until_s)
        assert not seen.lacking(slo)
        forecasts = search.forecasts(seen, mixed, [split])
        assert forecasts
        assert Pilot(mixed).choose(until_s, seen.attainment, forecasts) is None


def test_a_search_begins_soon_in_overload(tmp_path: Path) -> None:
    """Requests come faster than they are served from the start on: a period is enough."""
    unit, static = toy_units(tmp_path, 1)[0], msgspec.structs.replace(START, policy="static")
    prepared = prepare(scenario(unit, static), grown(0.0, 1.5 * PERIOD_S))
    names = [instance.name for instance in configured(prepared).instances]
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    driver = SelfDriver(static, names, ("static", "gittins"), search, PERIOD_S)
    operator = SimulatedOperator(driver, names, SLO)
    driven = run(prepared, Options(operator=operator))
    assert operator.plans and operator.plans[0].applied_s < PERIOD_S
    assert operator.plans[0].settings.policy == "gittins"
    assert kept(driven.requests) > kept(run(prepared).requests)


def seen_for(stay_s: float, num: int = 101) -> SeenRequests:
    """Requests a second apart, each there for so long."""
    ones, yes = np.ones(num, np.int32), np.ones(num, np.bool_)
    return SeenRequests(np.arange(float(num)), ones, ones, yes, yes, yes, np.full(num, stay_s))


def test_a_search_needs_more_requests_where_more_are_there_at_once() -> None:
    """As long as the SLOs let them stay: what waits longer is of settings that do not keep up."""
    patient = Slo(ttft_s=1e9, tpot_s=1.0)
    assert seen_for(1.0).lacking(patient) == LEAST_REQUESTS - 101
    assert seen_for(50.0).lacking(patient) == int(STAYS * 50.5) - 101
    assert seen_for(1e4).lacking(patient) == MOST_REQUESTS - 101
    assert seen_for(1e4).lacking(Slo(ttft_s=1.0, tpot_s=1.0)) == LEAST_REQUESTS - 101
    assert seen_for(1.0, LEAST_REQUESTS).lacking(patient) == 0


def test_a_search_needs_answers_whose_lengths_are_known() -> None:
    seen = seen_for(1.0, LEAST_REQUESTS)
    waiting = replace(seen, over=np.arange(LEAST_REQUESTS) < LEAST_ANSWERS - 7)
    assert waiting.lacking(SLO) == 7


def test_few_requests_are_repeated_at_their_rate_and_share_no_prompt() -> None:
    """Each half in turn, so that what is verified on was not searched on."""
    seen = replace(seen_for(1.0, 4), prompt_tokens=np.arange(4), hash_ids=[(0,), (1, 2), (), (1,)])
    longer = seen.prolonged(8)
    assert longer.prompt_tokens.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert longer.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    ids = longer.hash_ids
    assert [len(row) for row in ids] == [1, 2, 1, 2, 0, 1, 0, 1]
    flat = [key for row in ids for key in row]
    assert len(set(flat)) == len(flat)
    together = replace(seen, hash_ids=[(0,), (0, 1), (2,), (2,)]).prolonged(8).hash_ids
    assert all(together[row][0] == together[row + 1][0] for row in (0, 2, 4, 6))
    assert len({together[row][0] for row in (0, 2, 4, 6)}) == 4
    assert seen.prolonged(3) is seen


def test_requests_that_wait_are_of_the_load() -> None:
    """Those without a token are as long as others were, and those under way no shorter."""
    ones = np.ones(5)
    over = np.array([True, True, False, False, True])
    tokens = np.array([4, 8, 6, 0, 0], np.int32)
    seen = SeenRequests(np.arange(5.0), ones.astype(np.int32), tokens, over, over, over, ones)
    assert seen.likely_tokens().tolist() == [4, 8, 6, 8, 4]


def test_a_long_prompt_that_waits_is_taken_to_have_an_answer_that_fits(tmp_path: Path) -> None:
    """Others' answers may be longer than the model's context leaves room for behind it."""
    unit = toy_units(tmp_path, 1)[0]
    limits = ScenarioLimits(max_len=100)
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path, limits=limits)
    seen = seen_for(1.0, 2 * LEAST_REQUESTS)
    waits = np.arange(len(seen)) % 4 == 3
    seen = replace(
        seen,
        prompt_tokens=np.where(waits, 90, 10).astype(np.int32),
        output_tokens=np.where(waits, 0, 40).astype(np.int32),
        over=~waits,
    )
    assert search.forecasts(seen, START, [])[0].mean > 0.0


def test_the_newest_are_searched_on_though_none_of_them_has_an_answer_yet(tmp_path: Path) -> None:
    """Behind a long queue all answers are to older requests than those that a search takes."""
    unit = toy_units(tmp_path, 1)[0]
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    seen = seen_for(1.0, MOST_REQUESTS + LEAST_ANSWERS)
    answered = np.arange(len(seen)) < LEAST_ANSWERS
    seen = replace(seen, output_tokens=4 * answered.astype(np.int32), over=answered)
    assert search.forecasts(seen, START, [])[0].mean > 0.0


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


def test_a_plan_ends_with_the_load_that_it_was_made_for(tmp_path: Path) -> None:
    """A kept plan under which most of the newest requests miss an SLO is undone at the next look,
    though too few have come to tell the change of the load, or for a search.
    """
    unit = toy_units(tmp_path, 1)[0]
    search = SettingsSearch(unit, KNOBS, SLO, tmp_path)
    driver = SelfDriver(START, ("toy",), ("vllm", "sarathi"), search, PERIOD_S)
    other = msgspec.structs.replace(START, policy="sarathi")
    good = [
        SettingsForecast(settings=START, shares=(0.5, 0.5)),
        SettingsForecast(settings=other, shares=(0.9, 0.9)),
    ]
    seen = replace(seen_for(1.0, 300), arrival_s=np.linspace(0.0, 39.8, 300))
    seen = replace(seen, kept=seen.arrival_s < 36.0)
    driver.look(20.0, seen.between(0.0, 20.0))
    assert driver.pilot.choose(20.0, 0.7, good) == other
    assert not driver.pilot.judge(50.0, 0.9, 100)
    driver._since_s = 20.0
    assert driver.look(36.0, seen.between(0.0, 36.0)) == []
    assert driver.look(40.0, seen) == [ChoosePolicy("vllm")]
    assert driver.pilot.present == START


def test_answers_that_last_longer_than_a_look_withdraw_no_plan_by_the_few_that_ended(
    tmp_path: Path,
) -> None:
    """One in eight waits too long for its first token, which is known at once; that the others keep
    both SLOs is known when they end.
    """
    unit = toy_units(tmp_path, 1)[0]
    search = SettingsSearch(unit, KNOBS, Slo(ttft_s=0.1, tpot_s=0.1), tmp_path)
    driver = SelfDriver(START, ("toy",), ("vllm", "sarathi"), search, PERIOD_S)
    other = msgspec.structs.replace(START, policy="sarathi")
    good = [
        SettingsForecast(settings=START, shares=(0.5, 0.5)),
        SettingsForecast(settings=other, shares=(0.9, 0.9)),
    ]
    num, lasts_s = 3200, 5.0
    times_s = np.linspace(0.0, 39.95, num)
    late = np.arange(num) % 8 == 0
    ones = np.ones(num, np.int32)

    def seen(now: float) -> SeenRequests:
        over = (times_s + lasts_s <= now) & ~late
        tokens = np.where(over, 50, ones).astype(np.int32)
        stay_s = np.minimum(lasts_s, now - times_s)
        all_seen = SeenRequests(times_s, ones, tokens, over | late, over, over, stay_s)
        return all_seen.between(0.0, now)

    driver.look(20.0, seen(20.0))
    assert driver.pilot.choose(20.0, 0.7, good) == other
    assert not driver.pilot.judge(25.0, 0.87, 100)
    driver._since_s = 20.0
    for now in (28.0, 31.0, 34.0):
        assert driver.look(now, seen(now)) == []
        assert driver.pilot.present == other


def test_a_backlog_from_before_a_plan_is_no_verdict_on_it(tmp_path: Path) -> None:
    """It is judged once those are served, or some periods later; no plan is made meanwhile."""
    unit = toy_units(tmp_path, 1)[0]
    for answered_s, state in ((40.0, "kept"), (1e9, "undone")):
        driver = SelfDriver(
            START, ("toy",), ("vllm", "sarathi"), SettingsSearch(unit, KNOBS, SLO, tmp_path), 10.0
        )
        other = msgspec.structs.replace(START, policy="sarathi")
        good = [
            SettingsForecast(settings=START, shares=(0.1, 0.1)),
            SettingsForecast(settings=other, shares=(0.9, 0.9)),
        ]
        num = 600
        all_seen = replace(seen_for(1.0, num), arrival_s=np.linspace(0.0, 59.9, num))
        driver.look(20.0, all_seen.between(0.0, 20.0))
        assert driver.pilot.choose(20.0, 0.0, good) == other
        driver._load_s, driver._since_s, driver._due_s = 0.0, 20.0, 30.0
        states = []
        for now in (30.0, 45.0, 60.0):
            seen = all_seen.between(-np.inf, now)
            is_old = seen.arrival_s < 20.0
            over = is_old & (now >= answered_s) | ~is_old
            seen = replace(
                seen,
                over=over,
                output_tokens=over.astype(np.int32),
                kept=(seen.arrival_s > answered_s) & over,
            )
            driver.look(now, seen)
            assert driver.pilot.plan is not None
            states.append(driver.pilot.plan.state)
            assert driver.searches == 0 or state in states
        assert states[0] == "on trial" and states[-1] == state

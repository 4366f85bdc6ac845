"""A journal as an incident: repeated as it was, and run again as it was or otherwise."""

import argparse
import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from daemon.cli.simulate import add_arguments, simulate
from daemon.core.core import Core
from daemon.core.migration.flips import FlipState
from daemon.core.values.events import (
    Abort,
    Configured,
    CopiesDone,
    DrainBegun,
    Event,
    Finish,
    LinkChanged,
    PolicyChosen,
    Predicted,
    Reconfigured,
    RequestArrived,
    Resumed,
    Sealed,
    StepDone,
    Tick,
    TransferEnded,
    WorkerLost,
    WorkerReady,
)
from daemon.cost.profile import Fit, LinkSpec
from daemon.journal.reader import JournalError, read_records
from daemon.journal.records import FILE_NAME, OLDER_FILE_NAME
from daemon.journal.writer import JournalWriter
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.simulator.journal import INPUTS, read_incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import configured, rerun
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioError, ScenarioLimits, WorkerFault
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role
from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.core import drafting
from tests.core.driver import Driver
from tests.core.driver import configured as configured_core
from tests.journal.life import record
from tests.lab.simulator.made import DEVICE, journalled, phases, prepared, profile, workload

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))


def eventful(
    folder: Path,
    policy: str = "srtf",
    num_stages: int = 1,
    fault: tuple[WorkerFault, ...] = (),
    **limits: object,
) -> RunLog:
    """Bursts with lulls between them, more than memory and queue hold; its journal in `folder`."""
    log, journal = lived(policy, num_stages, frozenset(limits.items()), fault)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_bytes(journal)
    return log


@cache
def lived(
    policy: str,
    num_stages: int,
    limits: frozenset[tuple[str, Any]],
    fault: tuple[WorkerFault, ...] = (),
) -> tuple[RunLog, bytes]:
    """The log of such a run, and its journal."""
    bursts, each = 4, 24
    arrival_s = [4.0 * burst + 0.003 * i for burst in range(bursts) for i in range(each)]
    num = len(arrival_s)
    requests = workload(
        arrival_s,
        [20 + 7 * (i % 9) for i in range(num)],
        [5 + 11 * (i % 6) for i in range(num)],
        prefixes=[(i % 3, i % 2) for i in range(num)],
        prefix_block=16,
    )
    noisy = Fit(num_points=1, mape=0.0, noise_sigma=0.2)
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(1e8))
    one = profile(STEP, fit=noisy, pp=num_stages, device=device)
    asked = {
        "max_running": 8,
        "max_batch_tokens": 64,
        "max_len": 256,
        "max_waiting": 4,
        **dict(limits),
    }
    plan = prepared(
        [one, one],
        requests,
        num_blocks=24,
        limits=msgspec.structs.replace(ScenarioLimits(), **asked),
        policy=policy,
        predictor="noisy:0.5",
        fault=fault,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = run(plan, Options(journal=Path(folder)))
        return log, Path(folder, FILE_NAME).read_bytes()


def written(folder: Path, events: list[Event], max_bytes: int = 1 << 30) -> Path:
    """These events as a daemon's journal; beyond `max_bytes` it begins anew when it is idle."""
    config = events[0]
    assert isinstance(config, Configured)
    journal, core = JournalWriter(folder, max_bytes, config), Core(config)
    for event in events[1:]:
        journal.append(event)
        core.handle(event)
        journal.maintain(core, event.now)
    journal.close(events[-1].now)
    return folder / FILE_NAME


# Repeated


@pytest.mark.parametrize(("policy", "swap"), [("vllm", "recompute"), ("srtf", "")])
@pytest.mark.parametrize("num_stages", [1, 3])
def test_a_repeated_run_is_the_run(tmp_path: Path, policy: str, swap: str, num_stages: int) -> None:
    """What the simulator wrote down of a run and what its journal tells of it are one."""
    was = eventful(tmp_path, policy, num_stages, swap=swap)
    again = replayed(read_incident(tmp_path / FILE_NAME))
    log, true = again.requests, was.requests
    rejected = true.outcome == Outcome.REJECTED
    assert 5 < rejected.sum() < 50 and true.preemptions.sum() > 0
    assert bool(was.swaps) == (swap != "recompute")
    assert np.array_equal(log.paused_s, true.paused_s, equal_nan=True)
    for name in ("outcome", "output_tokens", "prompt_tokens", "instance", "preemptions"):
        assert np.array_equal(getattr(log, name), getattr(true, name)), name
    assert np.array_equal(log.recomputed_tokens, true.recomputed_tokens)
    assert np.array_equal(log.preempted_after_first, true.preempted_after_first)
    assert np.array_equal(log.asked_tokens[~rejected], true.asked_tokens[~rejected])
    for name in ("arrival_s", "started_s", "first_s", "last_s", "swap_s"):
        assert getattr(log, name) == pytest.approx(getattr(true, name), nan_ok=True), name
    assert again.virtual_s == pytest.approx(was.virtual_s)
    for one, other in zip(again.instances, was.instances, strict=True):
        assert (one.steps, one.tokens, one.preemptions, one.swaps) == (
            other.steps,
            other.tokens,
            other.preemptions,
            other.swaps,
        )
        assert one.sample_s == pytest.approx(other.sample_s)
        assert one.sample_running == other.sample_running
        assert one.sample_written == other.sample_written


def test_a_stream_that_was_turned_away_counts_as_long_as_the_mean(tmp_path: Path) -> None:
    eventful(tmp_path)
    log = replayed(read_incident(tmp_path / FILE_NAME)).requests
    rejected = log.outcome == Outcome.REJECTED
    mean = round(float(log.output_tokens[~rejected].mean()))
    assert set(log.asked_tokens[rejected].tolist()) == {mean}


# Run again


@pytest.mark.parametrize("policy", ["vllm", "srtf"])
@pytest.mark.parametrize("num_stages", [1, 3])
def test_recorded_steps_make_the_same_run(tmp_path: Path, policy: str, num_stages: int) -> None:
    """With the same arrivals, refusals, predictions and times, the Core does the same again."""
    was = eventful(tmp_path, policy, num_stages).requests
    again = rerun(read_incident(tmp_path / FILE_NAME)).requests
    assert np.array_equal(again.outcome, was.outcome)
    assert again.last_s == pytest.approx(was.last_s, nan_ok=True)
    assert np.array_equal(again.preemptions, was.preemptions)


@pytest.mark.parametrize("restart_s", [0.5, 3.0])
def test_a_worker_that_died_dies_again(tmp_path: Path, restart_s: float) -> None:
    """Its steps in flight are lost, its sequences wait and are computed again, as they were."""
    fault = WorkerFault(instance=0, at_s=4.2, restart_s=restart_s, blamed=True)
    was = eventful(tmp_path, fault=(fault,))
    incident = read_incident(tmp_path / FILE_NAME)
    assert [death.lost.now for death in incident.deaths] == [4.2] and incident.lost_s
    cores: list[Core] = []
    log = rerun(incident, options=Options(after_event=cores.append))
    assert cores[0].counters.worker_deaths == 1
    again, true = log.requests, was.requests
    assert np.array_equal(again.outcome, true.outcome)
    assert np.array_equal(again.preemptions, true.preemptions)
    assert again.last_s == pytest.approx(true.last_s, nan_ok=True)
    profiled = rerun(incident, profile=profile(STEP, device=DEVICE), options=Options())
    assert profiled.requests.preemptions.sum() > 0


def test_an_instance_that_was_woken_wakes_again(tmp_path: Path) -> None:
    """In the rerun it takes as long as it took, whatever was expected."""
    num = 60
    requests = workload([0.002 * i for i in range(num)], [40] * num, [60] * num)
    plan = prepared(
        [profile(STEP)] * 2, requests, num_blocks=24, limits=ScenarioLimits(max_len=128)
    )
    first, second = plan.groups
    groups = first, msgspec.structs.replace(second, asleep=True, wake_s=0.05)
    was = run(replace(plan, groups=groups), Options(journal=tmp_path))
    incident = read_incident(tmp_path / FILE_NAME)
    assert incident.homes[1].wake_s == pytest.approx(0.05)
    awake, woken = replayed(incident).instances
    assert awake.steps and woken.steps
    assert rerun(incident).requests.last_s == pytest.approx(was.requests.last_s)
    incident.homes[1].wake_s = 0.15
    assert rerun(incident, options=Options(journal=tmp_path / "late")).requests.last_s.size
    assert read_incident(tmp_path / "late" / FILE_NAME).homes[1].wake_s == pytest.approx(0.15)


def test_prompts_whose_tokens_cost_more_cost_it_again(tmp_path: Path) -> None:
    driver = Driver(configured_core(), 64)
    for number in range(4):
        driver.arrive([number] * 40, 4, prompt_cost=2)
    driver.settle()
    incident = read_incident(written(tmp_path, [driver.config, *driver.events]))
    (was,), (again,) = replayed(incident).instances, rerun(incident).instances
    assert (again.steps, again.tokens) == (was.steps, was.tokens)


@pytest.mark.parametrize("policy", ["vllm", "srtf"])
def test_a_journal_that_begins_with_a_checkpoint_is_an_incident(
    tmp_path: Path, policy: str
) -> None:
    """No worker says in it that it is ready: pools, pace and step numbers are the checkpoint's."""
    was = eventful(tmp_path / "whole", policy)
    size_bytes = (tmp_path / "whole" / FILE_NAME).stat().st_size
    path = written(tmp_path / "cut", journalled(tmp_path / "whole"), 7 * size_bytes // 10)
    assert (tmp_path / "cut" / OLDER_FILE_NAME).exists()
    records = list(read_records(path))
    assert not any(isinstance(record, WorkerReady) for record in records)
    incident = read_incident(path)
    num = len(incident.streams)
    assert 20 < num < len(was.requests)
    assert min(step.number for step in incident.steps) > 20
    log = replayed(incident).requests
    again = rerun(incident, options=Options(journal=tmp_path / "again")).requests
    jct_s = log.last_s - log.arrival_s
    assert jct_s == pytest.approx(
        (was.requests.last_s - was.requests.arrival_s)[-num:], nan_ok=True
    )
    assert again.last_s - again.arrival_s == pytest.approx(jct_s, nan_ok=True)
    assert np.array_equal(again.instance, log.instance)
    written_again = replayed(read_incident(tmp_path / "again" / FILE_NAME)).requests
    assert np.array_equal(written_again.last_s, log.last_s, equal_nan=True)


def test_policies_chosen_before_a_checkpoint_are_those_of_its_instances(tmp_path: Path) -> None:
    """Each instance of a daemon's journal has its configured policy written beside its name."""
    config = configured_core("srtf", instances=2)
    own = tuple(msgspec.structs.replace(one, policy="srtf") for one in config.instances)
    events: list[Event] = [
        msgspec.structs.replace(config, instances=own),
        *(WorkerReady(0.0, index, 24, 1, 0.01) for index in range(2)),
        PolicyChosen(1.0, "vllm", 1),
        *(RequestArrived(2.0 + request, request, 9, 1) for request in range(2)),
    ]
    path = written(tmp_path, events, max_bytes=160)
    assert not any(isinstance(record, PolicyChosen) for record in read_records(path))
    incident = read_incident(path)
    assert [one.policy for one in configured(incident, "", None).instances] == ["srtf", "vllm"]
    assert incident.policy == "srtf, vllm"


def test_flips_before_a_checkpoint_are_not_those_of_the_rerun(tmp_path: Path) -> None:
    eventful(tmp_path / "whole")
    size_bytes = (tmp_path / "whole" / FILE_NAME).stat().st_size
    path = written(tmp_path / "cut", journalled(tmp_path / "whole"), 7 * size_bytes // 10)
    incident = read_incident(path)
    assert incident.state is not None
    flip = FlipState(
        number=1,
        instance=0,
        was=Role.MIXED,
        role=Role.DECODE,
        why="operator",
        at_s=0.0,
        idle=True,
        received=False,
        flip_s=-1.0,
        clear_s=-1.0,
    )
    incident.state = msgspec.structs.replace(incident.state, num_flips=1, flips=[flip])
    shown: list[int] = []
    rerun(incident, options=Options(after_event=lambda core: shown.append(flips_of(core))))
    assert shown and not any(shown)


def flips_of(core: Core) -> int:
    """The number of flips that a viewer would see."""
    return len(core.migrator.flips.status(0.0))


def test_another_policy_has_its_own_budget_and_swap_mode(tmp_path: Path) -> None:
    eventful(tmp_path, "srtf", swap="recompute")
    incident = read_incident(tmp_path / FILE_NAME)
    assert configured(incident, "", None) == configured(incident, "srtf", None) == incident.config
    other = configured(incident, "vllm", None)
    budget = POLICIES["vllm"].budget(0)
    assert (other.max_batch_tokens, other.prefill_chunk, other.swap) == (budget, budget, "")
    assert {one.stages for one in other.instances} == {1}
    staged = configured(incident, "", profile(STEP, pp=3))
    assert {one.stages for one in staged.instances} == {3}
    log = rerun(incident, "vllm", profile(STEP, pp=3)).requests
    assert (log.outcome[log.outcome != Outcome.REJECTED] == Outcome.FINISHED).all()


def test_a_profile_without_a_host_link_swaps_nothing(tmp_path: Path) -> None:
    assert eventful(tmp_path).swaps > 0
    unlinked = msgspec.structs.replace(DEVICE, host_link=LinkSpec(0.0))
    log = rerun(read_incident(tmp_path / FILE_NAME), "", profile(STEP, device=unlinked))
    assert log.swaps == 0 and log.requests.preemptions.sum() > 0


def test_what_was_predicted_is_predicted_again(tmp_path: Path) -> None:
    """The first request was turned away and has another number in the journal than in the rerun."""
    eventful(tmp_path)
    incident = read_incident(tmp_path / FILE_NAME)
    rerun(incident, "sarathi", options=Options(journal=tmp_path / "again"))
    was, again = journalled(tmp_path), journalled(tmp_path / "again")

    def predicted(events: list[Event]) -> list[tuple[float, float, int, int]]:
        came = {e.request: e.now for e in events if isinstance(e, RequestArrived)}
        predictions = (e for e in events if isinstance(e, Predicted))
        return [(e.now, came[e.request], e.num_tokens, e.high_tokens) for e in predictions]

    assert predicted(was) == predicted(again) != []


def test_what_operators_did_is_done_again(tmp_path: Path) -> None:
    """A daemon that drains turns away; a chosen policy is chosen, unless another is asked for."""
    eventful(tmp_path, max_waiting=0)
    incident = read_incident(tmp_path / FILE_NAME)
    incident.inputs += [PolicyChosen(4.5, "vllm"), DrainBegun(12.01)]
    late = [one.arrival.now > 12.01 for one in incident.streams.values()]
    for policy, count in (("", 1), ("sjf", 0)):
        folder = tmp_path / f"again {policy}"
        log = rerun(incident, policy, options=Options(journal=folder)).requests
        chosen = [event for event in journalled(folder) if isinstance(event, PolicyChosen)]
        assert len(chosen) == count
        assert sum(late) > 0 and (log.outcome == Outcome.REJECTED).tolist() == late


def test_a_drain_that_was_resumed_and_a_changed_bound_count_again(tmp_path: Path) -> None:
    eventful(tmp_path, max_waiting=0)
    incident = read_incident(tmp_path / FILE_NAME)
    incident.inputs += [DrainBegun(0.0), Resumed(0.0)]
    assert not (rerun(incident).requests.outcome == Outcome.REJECTED).any()
    incident.inputs += [Reconfigured(0.0, 1, 0.3)]
    assert (rerun(incident).requests.outcome == Outcome.REJECTED).any()


def test_what_cannot_be_run_again_says_why(tmp_path: Path) -> None:
    eventful(tmp_path / "whole")
    events = journalled(tmp_path / "whole")
    incident = read_incident(tmp_path / "whole" / FILE_NAME)
    with pytest.raises(ScenarioError, match=r"policy must be one of .*, got 'nosuch'"):
        rerun(incident, "nosuch")
    arrived = [event for event in events[1:] if isinstance(event, RequestArrived)]
    path = written(tmp_path / "asleep", [events[0], *arrived])
    asleep = read_incident(path)
    assert (replayed(asleep).requests.outcome == Outcome.REJECTED).all()
    with pytest.raises(JournalError, match=r"journal\.llmd: no worker was ever ready"):
        rerun(asleep)
    foreign = msgspec.structs.replace(incident.config, policy="nosuch")
    journal = JournalWriter(tmp_path / "foreign", 1 << 30, foreign)
    journal.append(events[1])
    journal.close(0.0)
    with pytest.raises(JournalError, match="written under the policy 'nosuch'"):
        read_incident(tmp_path / "foreign" / FILE_NAME)
    journal = JournalWriter(tmp_path / "other", 1 << 30, incident.config)
    for event in events[1:]:
        wrong = {"reasons": np.zeros(99, np.uint8)} if isinstance(event, StepDone) else {}
        journal.append(msgspec.structs.replace(event, **wrong))
    journal.close(0.0)
    with pytest.raises(JournalError, match=r"does not replay, .* 99 answers"):
        read_incident(tmp_path / "other" / FILE_NAME)


# The command


def command(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return simulate(parser.parse_args([str(word) for word in words]))


@pytest.mark.parametrize(
    "flags",
    [
        *(
            [flag, "1"]
            for flag in ("--slo-ttft", "--kv-bytes", "--instances", "--max-len", "--max-running")
        ),
        ["--no-noise"],
        ["--predictor", "oracle"],
        ["--requests", "3"],
        ["--swap", "defer"],
        ["scenario.toml"],
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    eventful(tmp_path)
    assert command("--journal", tmp_path / FILE_NAME, "--policy", "vllm", *flags) == 2
    name = "a scenario file" if flags[0] == "scenario.toml" else flags[0]
    assert f"{name} has no effect with --journal" in capsys.readouterr().err


def test_the_command_repeats_and_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was = eventful(tmp_path)
    path, trace = tmp_path / FILE_NAME, tmp_path / "trace.json"
    for flags in ([], ["--policy", "srtf", "--journal-out", str(tmp_path / "again")]):
        assert command("--journal", path, "--json", "--perfetto", trace, *flags) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["preemptions"] == was.requests.preemptions.sum()
        assert report["recomputed_tokens"] == was.requests.recomputed_tokens.sum()
        assert report["swaps"] == was.swaps
        assert report["rejected"] == (was.requests.outcome == Outcome.REJECTED).sum()
        assert report["predictor"] == "as recorded"
        steps = [
            event
            for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
            if event.get("ph") == "X" and event["name"] in ("mixed", "prefill", "decode")
        ]
        assert len(steps) == sum(one.steps for one in was.instances)
    assert (tmp_path / "again" / FILE_NAME).exists()
    for flags in (["--seed", "3"], ["--journal-out", "elsewhere"]):
        assert command("--journal", path, *flags) == 2
        assert f"{flags[0]} needs --p" in capsys.readouterr().err


def test_a_journal_with_gaps_says_so_and_replays_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    eventful(tmp_path / "whole", "vllm")
    events = journalled(tmp_path / "whole")
    monkeypatch.setenv(TEST_MODE, "1")
    monkeypatch.setenv(VARIABLE, "journal.full:0.3:5")
    path = written(tmp_path / "gaps", events)
    incident, whole = read_incident(path), read_incident(tmp_path / "whole" / FILE_NAME)
    assert 0 < incident.num_missing < len(events)
    assert 0 < len(incident.streams) < len(whole.streams)
    for sequence, stream in incident.streams.items():
        told = whole.streams[sequence].token_s
        assert stream.token_s == told[: len(stream.token_s)]
    assert command("--journal", path) == 0
    assert f"it misses {incident.num_missing} events" in capsys.readouterr().out


def test_a_rerun_has_the_drafts_of_the_journal(tmp_path: Path) -> None:
    """As many are offered, tried and accepted, so every token comes when it came."""
    driver = Driver(configured_core("vllm", 1, max_running=6), 60, token_s=1e-3)
    for _ in range(8):
        driver.arrive([1] * 20, 12)
        for _ in range(30):
            drafting.answer(driver, 0, max)
            driver.tick()
    driver.settle()
    counters = driver.core.counters
    record(tmp_path, driver)
    incident = read_incident(tmp_path / FILE_NAME)
    assert incident.drafts.num_accepted == counters.accepted_tokens > 0
    cores: list[Core] = []
    options = Options(after_event=lambda core: cores.__setitem__(slice(None), [core]))
    was, again = replayed(incident).requests, rerun(incident, options=options).requests
    assert cores[0].counters.accepted_tokens == counters.accepted_tokens
    assert cores[0].counters.draft_tokens == counters.draft_tokens
    assert again.first_s == pytest.approx(was.first_s)
    assert again.last_s == pytest.approx(was.last_s)


def test_a_rerun_knows_each_kind_of_event() -> None:
    """One that is in no list would be dropped without a word when a journal is run again."""
    workers = {WorkerReady, WorkerLost, StepDone, CopiesDone, TransferEnded, LinkChanged}
    ends = {Finish, Abort}  # answers of a rerun end where they ended then
    left = {Sealed}  # of older journals
    known = {Configured, RequestArrived, Tick, *get_args(INPUTS), *workers, *ends, *left}
    assert set(get_args(Event)) == known, "put a new event of an operator into INPUTS"

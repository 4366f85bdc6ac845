"""A profile from a daemon's journal: the times between steps come back, and a later day checks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.cost.profile import Edges, LinkSpec, Profile
from daemon.journal.records import FILE_NAME
from daemon.lab.profiler.check import check
from daemon.lab.profiler.refit import observed_edges, read_journal, refit_to
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import save_profile
from daemon.lab.simulator.journal import Incident
from daemon.lab.simulator.run import Options, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.lab.workload.workload import WorkloadSpec
from tests.lab.planner.toys import toy_profile, toy_trace

TRUE = Edges(gap_s=0.01, turn_s=0.006)


def day(profile: Profile, folder: Path, seed: int = 0, **limits: Any) -> Incident:
    """The journal of two instances that serve some toy requests."""
    folder.mkdir()
    save_profile(profile, folder / "profile.json")
    group = InstanceGroup(profile=str(folder / "profile.json"), count=2, **limits)
    spec = WorkloadSpec(trace=toy_trace(folder), seed=seed, rate=20.0, requests=60)
    scenario = Scenario(workload=spec, instance=(group,), predictor="none", seed=seed)
    run(prepare(scenario), Options(journal=folder / "journal"))
    return read_journal(folder / "journal" / FILE_NAME)


@pytest.mark.parametrize("device", ["toy", "cpu-1"])
def test_the_times_between_steps_come_back_and_a_later_day_is_foretold(
    tmp_path: Path, device: str
) -> None:
    """A GPU has its next step already, a slow CPU waits for it."""
    slow = toy_profile(device, faster=0.2)  # steps of 25 ms: on a CPU one in flight
    truth = msgspec.structs.replace(slow, edges=TRUE)
    monday, tuesday = (day(truth, tmp_path / name, seed) for seed, name in enumerate("ab"))
    made = refit_to(slow, monday).profile
    if device == "toy":
        assert made.edges.turn_s == pytest.approx(TRUE.turn_s, rel=0.02)
    else:
        assert not any(step.is_behind for step in monday.steps)
        assert made.edges.gap_s == pytest.approx(TRUE.gap_s, rel=0.02)
    before, after = check(slow, tuesday), check(made, tuesday)
    assert after.requests == 60 and len(after.step_mape) == 2
    assert max(after.step_mape.values()) < 0.01
    assert after.request_error < 0.05 < 0.1 < before.request_error
    assert abs(after.mean_error) < 0.05 and abs(after.ttft_error) < 0.1


def test_too_few_steps_say_nothing_of_the_time_between(tmp_path: Path) -> None:
    known = msgspec.structs.replace(toy_profile(), edges=Edges(gap_s=0.5, turn_s=0.25))
    incident = day(toy_profile(), tmp_path / "day")
    few = replace(incident, steps=incident.steps[:5])
    assert observed_edges(few, known) == known.edges


def test_steps_that_others_held_up_count_in_the_mean(tmp_path: Path) -> None:
    """One in ten takes five times as long: the fit leaves them out, requests wait for them."""
    slow = toy_profile("cpu-1", faster=0.2)
    incident = day(slow, tmp_path / "day")
    steps = [
        replace(step, elapsed_s=5.0 * step.elapsed_s, end_s=step.end_s + 4.0 * step.elapsed_s)
        if number % 10 == 0
        else step
        for number, step in enumerate(incident.steps)
    ]
    made = refit_to(slow, replace(incident, steps=steps)).profile
    mean_s = sum(step.elapsed_s for step in incident.steps) / len(steps)
    assert made.edges.gap_s == pytest.approx(0.4 * mean_s, rel=0.2)


def test_a_journal_without_answers_checks_nothing(tmp_path: Path) -> None:
    incident = day(toy_profile(), tmp_path / "day")
    silent = {number: replace(each, token_s=[]) for number, each in incident.streams.items()}
    with pytest.raises(ProfileError, match="no answer had a token"):
        check(toy_profile(), replace(incident, streams=silent))


def test_decodes_of_layers_with_windows_are_fitted_by_what_they_attend_to(tmp_path: Path) -> None:
    """Whole contexts would be several times what the true profile counts."""
    slow = toy_profile("cpu-1", faster=0.2)
    decode = (5e-3, 2e-4, 2e-4)  # tokens attended to are most of a step
    step = msgspec.structs.replace(slow.step, decode_s=decode, large_decode_s=decode)
    model = msgspec.structs.replace(slow.model, windows=(16,) * (slow.model.num_layers - 1) + (0,))
    truth = msgspec.structs.replace(slow, step=step, model=model)
    made = refit_to(truth, day(truth, tmp_path / "day"))
    assert made.factors["decode"] == pytest.approx(1.0, rel=0.02)
    assert made.old_mape < 0.01


def test_steps_that_await_copies_do_not_make_gaps_longer(tmp_path: Path) -> None:
    """The simulated worker waits for its copies beside the gaps of a profile."""
    truth = msgspec.structs.replace(toy_profile("cpu-1", faster=0.2), edges=TRUE)
    slow_link = msgspec.structs.replace(truth.device, host_link=LinkSpec(2e6))
    truth = msgspec.structs.replace(truth, device=slow_link)
    incident = day(truth, tmp_path / "day", kv_bytes=80_000, swap="reactive", policy="mlfq")
    assert any(step.awaits for step in incident.steps)
    made = refit_to(truth, incident).profile
    assert made.edges.gap_s == pytest.approx(TRUE.gap_s, rel=0.02)

"""Steps that a simulated worker computes several times: the same tokens, fewer plans."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.values.events import StepDone, WorkerReady
from daemon.cost.profile import Edges
from daemon.journal.records import FILE_NAME
from daemon.lab.profiler.refit import observations, read_journal
from daemon.lab.report.records import Outcome
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.rerun import rerun
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioLimits
from tests.lab.simulator.made import journalled, phases, prepared, profile, workload

STEP = phases((0.002, 1e-5, 0.0), (0.002, 1e-6, 1e-7))
EDGES = Edges(gap_s=0.001)


def test_a_lone_answer_has_the_gap_between_steps_less_often(tmp_path: Path) -> None:
    one = profile(STEP, edges=EDGES)
    requests = workload([0.0, 1.0], [20, 30], [60, 40])
    limits = ScenarioLimits(depth=1)
    single = run(prepared([one], requests, noise=False, limits=limits)).requests
    fast = msgspec.structs.replace(one, most_times=8)
    plan = prepared([fast], requests, noise=False, limits=limits)
    several = run(plan, Options(journal=tmp_path)).requests
    assert several.output_tokens.tolist() == [60, 40]
    took, before = (log.last_s - log.first_s for log in (several, single))
    assert (took < 0.8 * before).all() and (took > 59 * 0.002 * np.array([1.0, 0.6])).all()
    events = journalled(tmp_path)
    assert {one.most_times for one in events if isinstance(one, WorkerReady)} == {8}
    counts = [one.counts.max(initial=1) for one in events if isinstance(one, StepDone)]
    assert max(counts) > 4 and len(counts) < 50
    learned = observations(read_journal(next(iter(tmp_path.iterdir()))))
    assert {work.times for work, _ in learned} == {1}
    assert max(elapsed_s for _, elapsed_s in learned) < 0.004


@pytest.mark.parametrize("answers", [[1, 2, 3], [8, 9, 10], [17, 60, 33]])
def test_every_answer_is_as_long_as_it_should_be(answers: list[int]) -> None:
    fast = profile(STEP, edges=EDGES, most_times=8)
    plan = prepared([fast, fast], workload([0.0, 0.001, 0.002], [20, 30, 40], answers), noise=False)
    log = run(plan).requests
    assert log.output_tokens.tolist() == answers and (log.outcome == Outcome.FINISHED).all()


def test_a_journal_that_is_run_otherwise_takes_as_long_each_time(tmp_path: Path) -> None:
    """Other lengths of prompts and another policy meet other steps than those that were recorded:
    each of their times takes what one took, however many a recorded step had.
    """
    fast = profile(STEP, most_times=8)
    requests = workload([0.0, 0.02, 0.5, 0.51], [20, 300, 30, 40], [60, 5, 60, 33])
    run(prepared([fast], requests, noise=False), Options(journal=tmp_path / "was"))
    incident = read_incident(tmp_path / "was" / FILE_NAME)
    incident.steps[:] = [replace(step, number=step.number + 1) for step in incident.steps]
    rerun(incident, "vllm", options=Options(journal=tmp_path / "again"))
    learned = observations(read_journal(tmp_path / "again" / FILE_NAME))
    took_s = [elapsed_s for work, elapsed_s in learned if not work.chunks]
    assert min(took_s) > 0.0015 and max(took_s) < 0.006

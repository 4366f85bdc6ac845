"""Requests with several answers: each has a row, and they share the prompt."""

import numpy as np
import pytest

from daemon.lab.report.records import Outcome
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioLimits
from tests.lab.simulator.made import phases, prepared, profile, workload

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))


@pytest.mark.parametrize("predictor", ["none", "oracle", "mean"])
def test_each_of_several_answers_is_as_long_as_it_should_be(predictor: str) -> None:
    requests = workload([0.0, 0.5, 0.6], [40, 20, 30], [9, 40, 17])
    plan = prepared([profile(STEP)], requests, noise=False, n=3, predictor=predictor)
    log = run(plan).requests
    assert log.arrival_s.tolist() == [0.0] * 3 + [0.5] * 3 + [0.6] * 3
    assert log.prompt_tokens.tolist() == [40] * 3 + [20] * 3 + [30] * 3
    assert log.asked_tokens[::3].tolist() == [9, 40, 17]
    assert set(log.asked_tokens.tolist()) <= {9, 40, 17}
    assert log.output_tokens.tolist() == log.asked_tokens.tolist()
    assert (log.outcome == Outcome.FINISHED).all() and (log.started_s >= log.arrival_s).all()
    again = run(plan).requests
    assert np.array_equal(again.last_s, log.last_s)
    assert report_of(plan, run(plan)).label.endswith(", 3 answers each")


def test_answers_share_the_prompt_and_are_turned_away_together() -> None:
    requests = workload([0.0, 0.001], [64, 64], [20, 20])
    limits = ScenarioLimits(max_running=3, max_waiting=3)
    plan = prepared([profile(STEP)], requests, noise=False, limits=limits, n=3)
    counted = []
    log = run(plan, Options(after_event=lambda core: counted.append(core.counters.computed_tokens)))
    outcomes = log.requests.outcome.reshape(2, 3)
    assert (outcomes[0] == Outcome.FINISHED).all()
    finished = int((outcomes == Outcome.FINISHED).sum())
    assert counted[-1] < finished * (64 + 20)  # each prompt once
    tight = prepared(
        [profile(STEP)], requests, limits=ScenarioLimits(max_waiting=2), n=3, noise=False
    )
    assert (run(tight).requests.outcome == Outcome.REJECTED).all()

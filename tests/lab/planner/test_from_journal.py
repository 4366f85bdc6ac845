"""A plan from a journal: its requests again, its configuration beside the search's answer."""

from pathlib import Path

import pytest

from daemon.journal.records import FILE_NAME
from daemon.lab.planner.candidate import Knobs, PlanCandidate
from daemon.lab.planner.evaluate import WorkloadSlice, prepared_of
from daemon.lab.planner.from_journal import measured_attainment, present, write_trace
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.run import Options, run
from daemon.lab.workload.traces import read_trace
from tests.lab.planner.toys import GOAL, toy_problem, toy_units


def test_a_journals_requests_and_configuration_come_back(tmp_path: Path) -> None:
    unit = toy_units(tmp_path, 1)[0]
    knobs = Knobs(policy="vllm", max_batch_tokens=128, prefill_chunk=128, kv_bytes=1e6)
    candidate = PlanCandidate(pools=(unit,), knobs=knobs)
    prepared = prepared_of(toy_problem(tmp_path), candidate, 10.0, WorkloadSlice(0, 40))
    run(prepared, Options(journal=tmp_path / "journal"))
    incident = read_incident(tmp_path / "journal" / FILE_NAME)
    assert write_trace(incident, tmp_path / "trace.jsonl") == 40
    trace, rows = read_trace(tmp_path / "trace.jsonl"), prepared.workload
    assert trace.prompt_tokens.tolist() == rows.prompt_tokens.tolist()
    assert trace.output_tokens.tolist() == rows.output_tokens.tolist()
    assert trace.time_s is not None
    assert trace.time_s.tolist() == pytest.approx(
        (rows.arrival_s - rows.arrival_s[0]).tolist(), abs=1e-6
    )
    found = present(incident, unit)
    assert found.pools == candidate.pools
    assert (found.knobs.policy, found.knobs.max_batch_tokens) == ("vllm", 128)
    assert found.knobs.kv_bytes == pytest.approx(1e6, rel=0.01)
    assert measured_attainment(incident, GOAL, 20) == 1.0

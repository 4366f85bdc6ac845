"""The trace for viewers: it parses, lanes do not overlap, phases add up."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.lab.report.errors import ReportError
from daemon.lab.report.perfetto import INSTANCES, LINKS, REQUESTS, phases, write_trace
from daemon.lab.report.records import Outcome, RunLog, Span
from tests.lab.report.logs import busy, by_hand

Event = dict[str, Any]


def written(run: RunLog, folder: Path) -> list[Event]:
    path = folder / "trace.json"
    write_trace(run, path)
    events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def test_phases_of_each_kind_of_request() -> None:
    log = by_hand().requests
    assert phases(log, 0, 8.0) == [("queued", 0, 0.5), ("prefill", 0.5, 1), ("decode", 1, 3)]
    assert phases(log, 3, 8.0) == []
    assert phases(log, 4, 9.0) == [("queued", 4, 6), ("prefill", 6, 8), ("decode", 8, 9)]
    log.first_s[4] = log.last_s[4] = np.nan
    assert phases(log, 4, 9.0) == [("queued", 4, 6), ("prefill", 6, 9)]
    log.outcome[4] = Outcome.FAILED
    assert phases(log, 4, 9.0) == [("queued", 4, 6)]
    log.started_s[0] = np.nan
    assert phases(log, 0, 8.0) == [("first token", 0, 1), ("decode", 1, 3)]


def test_phases_add_up_to_the_time_from_arrival_to_the_last_token(tmp_path: Path) -> None:
    run = busy(60)
    open_at: dict[tuple[int, str], int] = {}
    spent: dict[int, dict[str, int]] = defaultdict(dict)
    for event in written(run, tmp_path):
        if event["ph"] == "b":
            open_at[event["id"], event["name"]] = event["ts"]
        elif event["ph"] == "e":
            begin = open_at.pop((event["id"], event["name"]))
            spent[event["id"]][event["name"]] = event["ts"] - begin
    assert not open_at
    finished = np.flatnonzero(run.requests.outcome == Outcome.FINISHED)
    assert sorted(spent) == finished.tolist()
    for row, parts in spent.items():
        whole = parts.pop("request")
        assert set(parts) == {"queued", "prefill", "decode"}
        assert sum(parts.values()) == whole
        jct_s = run.requests.last_s[row] - run.requests.arrival_s[row]
        assert whole == pytest.approx(jct_s * 1e6, abs=1)


def test_a_rejected_request_is_an_instant(tmp_path: Path) -> None:
    (instant,) = (event for event in written(by_hand(), tmp_path) if event["ph"] == "n")
    assert (instant["id"], instant["name"], instant["ts"]) == (3, "rejected", 2_000_000)


def test_spans_lie_on_lanes_of_their_track(tmp_path: Path) -> None:
    run = by_hand()
    run.spans = [
        Span("a", "decode", 1.0, 0.5, {"tokens": 3}),
        Span("a", "decode", 1.25, 0.5),  # begins where the prefill ends: on its lane
        Span("a", "prefill", 0.25, 1.0),  # overlaps the first: another one
        Span("host to a", "copy", 1.0, 0.1),
    ]
    events = written(run, tmp_path)
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert list(lanes.values()) == ["a", "a (2)", "host to a"]
    assert [process for process, _ in lanes] == [INSTANCES, INSTANCES, LINKS]
    slices = [event for event in events if event["ph"] == "X"]
    assert [(e["ts"], e["dur"], lanes[e["pid"], e["tid"]]) for e in slices] == [
        (250_000, 1_000_000, "a"),
        (1_000_000, 500_000, "a (2)"),
        (1_250_000, 500_000, "a"),
        (1_000_000, 100_000, "host to a"),
    ]
    assert slices[1]["args"] == {"tokens": 3}


def test_slices_of_one_lane_never_overlap(tmp_path: Path) -> None:
    run = busy(10)
    run.spans += [Span("link", "copy", at / 7, 0.31) for at in range(50)]
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in written(run, tmp_path):
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, lanes.values())) == len(run.spans)
    assert sum(process == LINKS for process, _ in lanes) == 3
    for pieces in lanes.values():
        pieces.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(pieces))


def test_samples_are_counters_and_processes_have_names(tmp_path: Path) -> None:
    events = written(by_hand(), tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {INSTANCES: "instances", LINKS: "links", REQUESTS: "requests"}
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert ("a sequences", 4_000_000, {"running": 2, "waiting": 1}) in counters
    assert ("b KV", 4_000_000, {"allocated": 0.5, "written": 0.5}) in counters
    assert len(counters) == 2 * (3 + 1)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        write_trace(by_hand(), tmp_path / "none" / "trace.json")

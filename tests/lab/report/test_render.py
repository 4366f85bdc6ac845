"""A report as JSON and text, a run as CSV."""

import csv
import io
import json
import math
import re

import msgspec
import numpy as np
import pytest

from daemon.lab.report.measures import measure
from daemon.lab.report.numbers import seconds, three_digits
from daemon.lab.report.records import Outcome, RequestLog, RunLog
from daemon.lab.report.render import WIDTH, as_csv, as_json, as_text
from daemon.lab.report.report import Report
from daemon.lab.report.summarize import summarize
from tests.lab.report.logs import busy, by_hand
from tests.lab.report.test_summarize import ABOUT


@pytest.mark.parametrize("run", [by_hand(), busy(50)])
def test_json_reads_back_as_the_same_report(run: RunLog) -> None:
    report = summarize(run, ABOUT)
    text = as_json(report)
    again = msgspec.json.decode(text, type=Report)
    assert again == report
    assert as_json(again) == text
    keys = [name for name in Report.__struct_fields__ if name != "curves"]  # of --out alone
    assert list(json.loads(text)) == keys
    assert text.splitlines()[1] == '  "kind": "simulated",'


def test_json_says_null_where_nothing_is_known() -> None:
    run = RunLog(RequestLog.empty(1), [], [], virtual_s=1.0, wall_s=0.0)
    found = json.loads(as_json(summarize(run, msgspec.structs.replace(ABOUT, classes=()))))
    assert found["ttft_s"] == dict.fromkeys(["mean", "p50", "p90", "p95", "p99", "max"])
    assert found["mfu"] is None and found["slo_attainment"] is None
    assert found["capacity_rps"] is None


def test_json_of_what_numpy_left_in_a_log() -> None:
    run = by_hand()
    run.virtual_s = np.float64(8.0)
    run.instances[0].steps = np.int64(4)  # type: ignore[assignment]
    assert as_json(summarize(run, ABOUT)) == as_json(summarize(by_hand(), ABOUT))


def test_text_says_the_numbers() -> None:
    text = as_text(summarize(by_hand(), ABOUT))
    for words in (
        "by hand\nsimulated, policy vllm, none, seed 7, predictor oracle, exact\n",
        "5 requests: 3 finished, 1 rejected, 0 failed, 1 unfinished; 2 more were too long",
        "8.00 s simulated in 500 ms",
        "0.375 requests/s of 1.50 asked",
        "40.0 % met, goodput 0.250 requests/s",
        "chat 66.7 %, batch 0.0 %",
        "62.5 % of the tokens asked",
        "3; 20.0 % of requests after their first token; 56 tokens recomputed, 3 swaps",
        "50.6 % allocated, 32.2 % written",
        "6 of 20.0 tokens, MFU 15.6 %",
        "1,600 J, 200 W, 178 J a token",
    ):
        assert words in text
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert rows["TTFT"] == "TTFT 1.75 s 1.00 s 3.10 s 3.55 s 3.91 s 4.00 s"
    assert rows["longest gap"] == "longest gap 1.50 s 1.50 s 1.90 s 1.95 s 1.99 s 2.00 s"
    assert rows["paused"] == "paused 375 ms 0 s 1.05 s 1.27 s 1.45 s 1.50 s"
    assert rows["b"] == "b 1 2 25.0 % 20.0 0.500 6.2 % 50.0 W 400 J"


def test_text_says_who_sent_what_where_instances_have_roles() -> None:
    run = by_hand()
    assert "ROLE" not in as_text(summarize(run, ABOUT))
    run.handoffs, run.handoffs_failed = 3, 1
    first, second = run.instances
    first.role, second.role = "prefill", "decode"
    first.transfers, first.sent_bytes, first.transfer_s = 4, 2.5e9, 0.125
    report = summarize(run, ABOUT)
    text = [line.split() for line in as_text(report).splitlines()]
    assert ["INSTANCE", "ROLE", "TRANSFERS", "SENT", "IN"] in text
    assert ["a", "prefill", "4", "2.50", "GB", "125", "ms"] in text
    assert ["b", "decode", "0", "0", "GB", "0", "s"] in text
    assert "handoffs     3; 2.50 GB sent, 1 transfers failed or arrived wrong" in as_text(report)
    assert (report.handoffs, report.handoffs_failed, report.sent_bytes) == (3, 1, 2_500_000_000)


def test_text_fits_and_keeps_control_characters_out() -> None:
    report = summarize(by_hand(), msgspec.structs.replace(ABOUT, label="a\x1b[31m " * 40))
    report = msgspec.structs.replace(
        report, capacity_rps=2.5, capacity={"condition": "unserved " * 20, "rates": [1, 2]}
    )
    text = as_text(report)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text and "rates" not in text
    assert "2.50 requests/s" in text and text.split().count("unserved") == 21


def test_text_of_a_run_seen_from_outside() -> None:
    run = by_hand()
    run.instances = []
    run.requests.swap_s[:] = 0
    text = as_text(summarize(run, msgspec.structs.replace(ABOUT, kind="measured", classes=())))
    for absent in ("INSTANCE", "KV memory", "energy", "promises", "waits for swaps"):
        assert absent not in text
    for unknown in ("preemptions", "steps"):
        assert re.search(rf"^{unknown} +-$", text, re.MULTILINE)
    assert "8.00 s measured" in text and "waits for handoffs" in text


@pytest.mark.parametrize("run", [by_hand(), busy(50)])
def test_csv_reads_back_identically(run: RunLog) -> None:
    log, measures = run.requests, measure(run.requests)
    rows = list(csv.DictReader(io.StringIO(as_csv(run))))
    assert [row["request"] for row in rows] == [str(index) for index in range(len(log))]
    assert [Outcome[row["outcome"].upper()] for row in rows] == log.outcome.tolist()
    names = set(RequestLog.__slots__) - {"outcome", "gap_s", "gap_request"}
    for name in names | set(type(measures).__slots__):
        values = getattr(log, name) if name in names else getattr(measures, name)
        cells = [float(row[name]) if row[name] else math.nan for row in rows]
        assert np.array_equal(np.array(cells).astype(values.dtype), values, equal_nan=True), name


def test_csv_of_a_run_seen_from_outside_leaves_out_what_happened_inside() -> None:
    run = by_hand()
    run.instances = []
    rows = list(csv.DictReader(io.StringIO(as_csv(run))))
    names = ("preemptions", "preempted_after_first", "recomputed_tokens", "swap_s", "transfer_s")
    assert {row[name] for row in rows for name in names} == {""}
    assert [row["output_tokens"] for row in rows] == ["4", "1", "3", "0", "1"]


def test_csv_has_the_longest_gap_of_each_request() -> None:
    rows = csv.DictReader(io.StringIO(as_csv(by_hand())))
    assert [row["longest_gap_s"] for row in rows] == ["1.0", "", "2.0", "", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (850e-6, "850 us"),
        (0.0125, "12.5 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (1.236, "1.24 s"),
        (12345.6, "12,346 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.000012, "1.20e-05"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (9.996, "10.0"),
        (99.96, "100"),
        (-1234567.0, "-1,234,567"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert three_digits(value) == text

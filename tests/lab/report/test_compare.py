"""Two reports side by side, and reports read from files."""

from pathlib import Path

import msgspec
import pytest

from daemon.lab.report.compare import WIDTH, as_text, compare, read_report
from daemon.lab.report.errors import ReportError
from daemon.lab.report.render import as_json
from daemon.lab.report.report import Report, Stats
from daemon.lab.report.summarize import summarize
from tests.lab.report.logs import by_hand
from tests.lab.report.test_summarize import ABOUT


def report(**changes: object) -> Report:
    return msgspec.structs.replace(summarize(by_hand(), ABOUT), **changes)


def test_differences_are_relative_to_a() -> None:
    slower = Stats(2.1875, 0.5, None, 3.55, 7.82)
    found = compare(report(), report(ttft_s=slower, throughput_rps=0.75, preemptions=0))
    rows = {row.measure: row for row in found.rows}
    assert rows["TTFT mean"].difference == pytest.approx(0.25)
    assert rows["TTFT p50"].difference == -0.5
    assert rows["TTFT p90"].difference is None
    assert rows["TTFT p95"].difference == pytest.approx(0)
    assert rows["TTFT p99"].difference == pytest.approx(1)
    assert rows["throughput"].difference == 1
    assert (rows["preemptions"].a, rows["preemptions"].b) == (3, 0)
    assert rows["preemptions"].difference == -1
    assert rows["TPOT mean"].difference == 0
    assert found.notes == ()


def test_every_latency_has_all_its_statistics() -> None:
    found = compare(report(), report())
    assert len(found.rows) == 9 * 6 + 4
    changed = {row.measure: row.difference for row in found.rows if row.difference != 0}
    assert changed == {"paused p50": None}  # of 0, which nothing can be relative to


def test_nothing_is_relative_to_zero() -> None:
    rows = {row.measure: row for row in compare(report(preemptions=0), report()).rows}
    assert rows["preemptions"].difference is None


def test_promises_and_gaps_are_compared() -> None:
    slower = report(slo_attainment=0.3, goodput_rps=0.125, queueing_s=Stats(1.5, 1, 1, 1, 1))
    rows = {row.measure: row for row in compare(report(), slower).rows}
    assert (rows["SLO attainment"].a, rows["SLO attainment"].b) == (0.4, 0.3)
    assert rows["goodput"].difference == -0.5
    assert rows["queueing mean"].difference == 1
    assert rows["TBT mean"].difference == 0
    shown = as_text(compare(report(), slower))
    assert "40.0 %" in shown and "30.0 %" in shown


def test_what_a_client_cannot_know_is_compared_by_no_ratio() -> None:
    seen = by_hand()
    seen.instances = []
    outside = summarize(seen, msgspec.structs.replace(ABOUT, classes=()))
    for a, b in ((report(), outside), (outside, report())):
        found = compare(a, b)
        rows = {row.measure: row for row in found.rows}
        for measure in ("preemptions", "SLO attainment", "goodput"):
            assert rows[measure].difference is None
            assert (rows[measure].a is None) == (a is outside)
        (line,) = (line for line in as_text(found).splitlines() if line.startswith("preemptions"))
        assert sorted(line.split()) == ["-", "-", "3", "preemptions"]


def test_other_circumstances_are_noted() -> None:
    other = report(kind="measured", label="else", policy="sarathi", seed=8)
    assert compare(report(), other).notes == (
        "kind: A simulated, B measured",
        "workload: A by hand, B else",
        "policy: A vllm, B sarathi",
        "seed: A 7, B 8",
    )


def test_text() -> None:
    other = report(label="far " * 60, jct_s=Stats(3.3, 3, 4, 5, None))
    text = as_text(compare(report(), other))
    assert max(map(len, text.splitlines())) <= WIDTH
    table = text.partition("\n\n")[2]
    rows = {line[:12].strip(): " ".join(line[12:].split()) for line in table.splitlines()}
    assert rows["JCT mean"] == "3.00 s 3.30 s +10.0 %"
    assert rows["JCT p99"] == "4.96 s - -"
    assert text.startswith("The two runs are not alike:\nworkload: A by hand, B far far")
    assert not as_text(compare(report(), report())).startswith("The two")


def test_a_report_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(as_json(report()) + "\n", encoding="utf-8")
    assert read_report(path) == report()


def test_a_report_of_an_older_llmd_is_read_and_lacks_what_it_did_not_measure(
    tmp_path: Path,
) -> None:
    old = msgspec.to_builtins(report())
    del old["longest_gap_s"], old["paused_s"], old["ttft_s"]["max"]
    path = tmp_path / "old.json"
    path.write_bytes(msgspec.json.encode(old))
    rows = {row.measure: row for row in compare(read_report(path), report()).rows}
    for measure in ("longest gap mean", "paused p99", "TTFT max"):
        assert rows[measure].a is None and rows[measure].difference is None
        assert rows[measure].b is not None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"ttft 3", "not JSON"),
        (b'{"kind": "\xff"}', "not JSON"),
        (b"[]", "not a report: Expected object, got array"),
        (b"{}", "not a report: Object missing required field kind"),
        (b'{"kind": 3}', "not a report: kind: Expected str, got int"),
        (b'{"kind": "x", "tpot_s": {"mean": "a"}}', "tpot_s.mean: Expected float | null, got str"),
    ],
)
def test_what_is_no_report(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        read_report(path)
    assert str(caught.value).startswith(f"{path}: ") and fault in str(caught.value)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"none\.json: No such file"):
        read_report(tmp_path / "none.json")

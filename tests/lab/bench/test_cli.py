"""`llmd bench` and `llmd compare` as a user types them."""

import argparse
import asyncio
import csv
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli import bench, compare
from daemon.cli.faults import UsageError
from daemon.cli.workload_flags import workload_spec
from daemon.lab.report.curves import NUM_QUANTILES
from daemon.lab.workload.workload import WorkloadError
from tests.lab.bench.scripted import ScriptedServer


def parse(module: object, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args(flags)


def given(*flags: str) -> argparse.Namespace:
    return parse(bench, "--url", "x", *flags)


@pytest.fixture
def url() -> Iterator[str]:
    """A scripted endpoint with an event loop of its own."""
    ready, addresses = threading.Event(), []
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with ScriptedServer() as server:
            addresses.append(server.url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert ready.wait(10)
    yield addresses[0]
    loop.call_soon_threadsafe(done.set)
    thread.join()
    loop.close()


def test_a_run_and_its_files(
    url: str, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table, page = (tmp_path / name for name in ("out.json", "rows.csv", "page.html"))
    flags = ["--url", url, "--trace", str(lengths), "--arrivals", "closed", "--slo-ttft", "50"]
    files = ["--out", str(out), "--csv", str(table), "--html", str(page)]
    assert bench.bench(parse(bench, *flags, "--json", *files)) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["requests"], report["finished"], report["dropped"]) == (5, 5, 1)
    assert report["slo_attainment"] == 1.0 and report["ttft_s"]["p99"] > 0
    kept = json.loads(out.read_text())
    assert len(kept.pop("curves")["quantiles"]["ttft_s"]) == NUM_QUANTILES
    assert kept == report
    assert page.read_text().count("<svg") == 5  # clients see four latencies, and who waits
    assert "llmd bench: this process used" in shown.err
    with table.open() as rows:
        assert [row["output_tokens"] for row in csv.DictReader(rows)] == ["3", "1", "5", "4", "2"]

    assert bench.bench(parse(bench, *flags)) == 0
    assert "5 requests: 5 finished" in capsys.readouterr().out

    assert compare.compare(parse(compare, str(out), str(out), "--json")) == 0
    rows_of = json.loads(capsys.readouterr().out)
    assert {row["difference"] for row in rows_of["rows"]} <= {0.0, None}
    assert compare.compare(parse(compare, str(out), str(out))) == 0
    assert "TTFT mean" in capsys.readouterr().out
    assert compare.compare(parse(compare, str(out), str(out), "--html", str(page))) == 0
    assert "A out" in page.read_text() and "B out" in page.read_text()
    out.write_text(json.dumps(report))
    assert compare.compare(parse(compare, str(out), str(out), "--html", str(page))) == 1
    assert f"{out}: has no curves to draw" in capsys.readouterr().err


def test_faults_are_one_line(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ["--trace", str(lengths), "--rate", "1"]
    assert bench.bench(parse(bench, "--url", "127.0.0.1:1", *trace)) == 1
    assert bench.bench(given()) == 2
    with pytest.raises(UsageError, match="--warm-up and --max-len must not be below 0"):
        bench.bench(given(*trace, "--warm-up", "-1"))
    assert compare.compare(parse(compare, str(lengths), str(lengths))) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 3 and error.count("llmd: ") == 3


def test_workload_flags_become_a_specification(tmp_path: Path) -> None:
    spec = workload_spec(
        given(
            *("--workload", "alpaca", "--requests", "30", "--arrivals", "gamma:2", "--rate", "1.5"),
            *("--seed", "4", "--slo", "chat:0.8:ttft=1:tpot=0.05", "--slo", "bulk:0.2"),
        )
    )
    assert (spec.name, spec.requests, spec.arrivals, spec.rate) == ("alpaca", 30, "gamma:2", 1.5)
    assert (spec.trace, spec.rate_scale, spec.seed) == (None, 0.0, 4)
    assert [(c.name, c.share, c.ttft_s, c.tpot_s) for c in spec.classes] == [
        *(("chat", 0.8, 1.0, 0.05), ("bulk", 0.2, 0.0, 0.0)),
    ]
    spec = workload_spec(given("--trace", str(tmp_path), "--rate-scale", "2", "--slo-tpot", "0.1"))
    assert (spec.trace, spec.rate_scale) == (tmp_path, 2.0)
    assert [(c.name, c.tpot_s) for c in spec.classes] == [("all", 0.1)]


def test_contradictions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkloadError, match="--trace FILE or --workload NAME"):
        workload_spec(given())
    with pytest.raises(WorkloadError, match="--slo names classes"):
        workload_spec(given("--workload", "alpaca", "--slo", "a", "--slo-ttft", "1"))
    for flags in (["--rate", "1", "--rate-scale", "2"], ["--slo", "chat:0.8:speed=1"]):
        with pytest.raises(SystemExit):
            given(*flags)
    assert "speed=1" in capsys.readouterr().err

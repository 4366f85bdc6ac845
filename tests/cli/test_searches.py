"""`llmd simulate --capacity` and `--sweep` as a user types them."""

import json
from pathlib import Path

import msgspec
import pytest

from daemon.cli import searches
from daemon.cli.main import main
from daemon.lab.profiles.load import save_profile
from daemon.lab.report.compare import read_report
from tests.lab.planner.small import profile, scenario

SIZES = ("--max-running", "1", "--max-batch-tokens", "17", "--predictor", "none", "--depth", "1")


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    """Flags of a server of one request at a time, half a second each, and 200 such requests."""
    one = scenario(tmp_path, 200)
    flags = ["--trace", str(one.workload.trace), "--profile", one.instance[0].profile]
    return [*flags, "--kv-bytes", "1e7", "--policy", "vllm", "--arrivals", "uniform", *SIZES]


def ours(folder: Path, server: list[str]) -> list[str]:
    """The same on a device that nobody has a price for."""
    path = folder / "ours.json"
    save_profile(msgspec.structs.replace(profile(device="ours"), name="ours"), path)
    return [str(path) if flag.endswith("constant.json") else flag for flag in server]


def refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["simulate", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("llmd: ") and shown.err.count("\n") == 1
    return shown.err


def never(*_: object) -> None:
    raise AssertionError("simulated before the flags were checked")


@pytest.mark.parametrize(
    ("promises", "condition"),
    [
        (["--slo-ttft", "0.6"], "TTFT <= 0.6 s for 90 % of requests; "),
        (["--slo", "all:ttft=0.6"], "TTFT <= 0.6 s for 90 % of requests; "),
        (
            ["--slo", "a:0.5:ttft=0.6", "--slo", "b:0.5", "--attainment", "0.8"],
            "TTFT <= 0.6 s for 80 % of a; ",
        ),
    ],
)
def test_capacity_keeps_what_the_flags_promise(
    server: list[str],
    promises: list[str],
    condition: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With equal gaps nobody waits up to 2 requests/s, and everyone does soon after."""
    out = tmp_path / "out.json"
    assert main(["simulate", *server, "--capacity", *promises, "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["capacity"]["condition"].startswith(condition)
    assert "attainment" in printed["capacity"]["limited_by"]
    assert printed["capacity_rps"] == pytest.approx(2.0, rel=0.03)


def test_a_capacity_is_printed_once(server: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *server, "--capacity"]) == 0
    text = capsys.readouterr().out
    assert text.count("limited_by") == text.count("unserved_fraction") == 1
    assert text.count("tokens unserved") == 1
    assert sum(line.startswith("capacity ") for line in text.splitlines()) == 1


def test_a_sweep_with_its_prices_and_files(
    server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, prices = tmp_path / "rows.json", tmp_path / "prices.toml"
    prices.write_text('[price]\n"a100-80g" = 2.0\n')
    flags = ["--sweep", "--rates", "0.5,1", "--workers", "1", "--prices", str(prices)]
    more = ["--requests", "20", "--instances", "2", "--json", "--out", str(out)]
    assert main(["simulate", *server, *flags, *more]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == json.loads(out.read_text())
    assert [row["rate_rps"] for row in rows] == [0.5, 1.0]
    for row in rows:
        assert row["dollars_per_hour"] == 4.0
        assert row["qps_per_dollar"] == row["report"]["throughput_rps"] / 4.0


def test_without_a_price_a_sweep_shows_what_it_knows(
    server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--sweep", "--profiles", "none," + ours(tmp_path, server)[3], "--workers", "1"]
    assert main(["simulate", *server, *flags, "--rate", "0.5", "--requests", "20"]) == 1
    shown = capsys.readouterr()
    head, missing, row = (line.split() for line in shown.out.splitlines())
    assert head[0] == "PROFILE" and row[-1] == "-" and row[1] == "vllm"
    assert missing[0] == "none" and "'none';" in missing
    assert shown.err.count("no price for the device 'ours'") == 1


def test_what_a_sweep_lacks_is_said_before_it_begins(
    server: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(searches, "sweep", never)
    missing = str(tmp_path / "prices.toml")
    assert "No such file" in refused([*server, "--sweep", "--prices", missing], capsys)
    unpriced = [*ours(tmp_path, server), "--rate", "0.5", "--sweep", "--pareto", "front.svg"]
    assert "no price for the device 'ours'" in refused(unpriced, capsys)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--rates", "1,2"], "--rates needs --sweep"),
        (["--policies", "vllm"], "--policies needs --sweep"),
        (["--prices", "x.toml"], "--prices needs --sweep"),
        (["--workers", "0"], "--workers needs --sweep"),
        (["--profiles", "x", "--capacity"], "--profiles needs --sweep"),
        (["--pareto", "x.svg"], "--pareto needs --sweep"),
        (["--attainment", "0.5"], "--attainment needs --capacity"),
        (["--slo-p99-queueing", "5", "--sweep"], "--slo-p99-queueing needs --capacity"),
        (["--sweep", "--csv", "x.csv"], "--csv is of one run"),
        (["--sweep", "--plot", "x.svg"], "--plot is of one run"),
        (["--sweep", "--perfetto", "x.json"], "--perfetto is of one run"),
        (["--capacity", "--csv", "x.csv"], "--csv is of one run"),
        (["--capacity", "--journal-out", "x"], "--journal-out is of one run"),
        (["--capacity", "--journal", "x"], "--journal is of one run"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    server: list[str], flags: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in refused([*server, "--rate", "1", *flags], capsys)


def test_a_front_is_drawn_and_reports_can_be_compared(
    server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front, out = tmp_path / "front.svg", tmp_path / "one.json"
    flags = ["--sweep", "--policies", "vllm,sarathi", "--workers", "1", "--pareto", str(front)]
    assert main(["simulate", *server, "--rate", "0.5", "--requests", "20", *flags]) == 0
    assert front.read_text().startswith("<?xml")
    page = tmp_path / "page.html"
    files = ["--out", str(out), "--html", str(page)]
    assert main(["simulate", *server, "--rate", "0.5", *files]) == 0
    assert read_report(out).rate_rps == 0.5 and "Queue" in page.read_text()
    assert "2 of 2" in capsys.readouterr().err


def test_numbers_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--sweep", "--rates", "1,fast"])
    assert "expected numbers with commas, got '1,fast'" in capsys.readouterr().err


def test_a_poor_profile_is_named_wherever_it_is_used(
    server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = profile(device="ours")
    lacks = ("no step was held out, so that the error is not known",)
    fit = msgspec.structs.replace(made.fit, lacks=lacks)
    path = tmp_path / "poor.json"
    save_profile(msgspec.structs.replace(made, name="poor", fit=fit), path)
    flags = [str(path) if flag.endswith("constant.json") else flag for flag in server]
    said = f"llmd: poor was measured poorly: {lacks[0]}\n"
    out = tmp_path / "report.json"
    assert main(["simulate", *flags, "--rate", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert said in shown.err and "poor (measured poorly)" in shown.out
    assert read_report(out).profile == "poor (measured poorly)"
    assert main(["simulate", *flags, "--sweep", "--rates", "1", "--workers", "1"]) == 0
    assert said in capsys.readouterr().err
    assert main(["simulate", *flags, "--capacity", "--slo-ttft", "0.6"]) == 0
    assert said in capsys.readouterr().err

"""`llmd plan` as a user types it."""

import json
from pathlib import Path

import pytest

from daemon.cli.main import main
from daemon.config.load import load
from daemon.journal.records import FILE_NAME
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate
from daemon.lab.planner.configuration import configuration
from daemon.lab.planner.evaluate import WorkloadSlice, prepared_of
from daemon.lab.planner.goal import Goal
from daemon.lab.simulator.run import Options, run
from tests.lab.planner.toys import toy_problem, toy_trace, toy_units

SLOS = ("0.1", "0.02")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Two toy devices, as two instances or as one, and short requests."""
    profiles = ",".join(unit.profile for unit in toy_units(tmp_path, 1, 2))
    flags = ["--trace", str(toy_trace(tmp_path)), "--profiles", profiles, "--devices", "toy:2"]
    slo = ["--slo-ttft", SLOS[0], "--slo-tpot", SLOS[1], "--requests", "80", "--workers", "1"]
    return ["plan", *flags, *slo, "--policies", "vllm", "--budgets", "128"]


def test_a_plan_is_a_configuration_with_its_reasons(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "llmd.toml", tmp_path / "kept.jsonl"
    assert main([*words, "--json", "--out", str(out), "--resume", str(kept)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["policy"] == "vllm" and found["best"]["budget"] == 128
    assert found["predicted"]["goodput_rps"] > 0 and found["predicted"]["attainment"] >= 0.9
    assert found["tried"] > 0 and found["wall_s"] > 0
    config = load(out).config
    assert config.scheduler.policy == "vllm" and config.scheduler.roles == "mixed"
    assert sum(spec.device.count(",") + 1 for spec in config.instance) == 2
    assert config.slo.ttft_s == 0.1
    assert config.model.path == "toy"  # and not the embedded one, which it was not made for
    assert main([*words, "--resume", str(kept)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("plan: ") and "runner-up: " in page and "binds: " in page
    assert ", 0 simulations" in page
    assert page.splitlines()[0].removeprefix("plan: ") in out.read_text()
    html = tmp_path / "plan.html"
    assert main([*words, "--resume", str(kept), "--html", str(html)]) == 0
    text = html.read_text()
    assert text.count("<svg") == 2 + 8  # the front by two latencies, and the best one's run
    assert found["best"]["text"] in text and ">chosen</text>" in text and "runner-up: " in text


def test_a_plan_is_told_even_if_its_page_cannot_be_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no device that is always full")
    assert main([*words, "--html", str(full)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("plan: ") and "No space left on device" in said.err


def test_offline_work_is_planned_for_its_makespan(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once and without SLOs: two devices on their own finish before two together."""
    offline = [word for word in words if not word.startswith("--slo") and word not in SLOS]
    assert main([*offline, "--objective", "makespan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    predicted = found["predicted"]
    assert (
        found["best"]["text"].startswith("2 x toy") and found["condition"] == "all requests at once"
    )
    assert predicted["makespan_s"] * predicted["goodput_rps"] == pytest.approx(80, rel=0.02)
    assert main([*offline, "--objective", "makespan"]) == 0
    assert "of 80 requests" in capsys.readouterr().out
    assert main([*words, "--objective", "makespan"]) == 2
    assert "has no SLOs; leave --slo-... out" in capsys.readouterr().err
    assert main([*offline, "--objective", "makespan", "--rate", "3"]) == 2
    assert "all requests come at once" in capsys.readouterr().err


def test_a_configuration_names_the_gpus_of_each_instance() -> None:
    pool = CandidatePool(profile="a", device="a100-80g", tp=2, count=2)
    text = configuration(PlanCandidate(pools=(pool,)), Goal(ttft_s=1))
    assert 'device = "cuda:0,1"\nparallel = "tp2"' in text
    assert 'device = "cuda:2,3"\nparallel = "tp2"' in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--devices", "toi:2"], "unknown device 'toi'; did you mean 'toy'?"),
        (["--policies", "vlm"], "unknown policy 'vlm'; did you mean 'vllm'?"),
        (["--requests", "9"], "--requests must be at least 32"),
        (["--workers", "-1"], "workers must not be below 0"),
        (["--profiles", "opt-13b@a1000"], "unknown profile 'opt-13b@a1000'"),
        (["--quantize", "int3"], "unknown format of weights 'int3'"),
        (["--quantize", "int8"], "no profile of toy has weights in int8"),
        (["--most-rent", "nan"], "most_rent must be 0 or more, got nan"),
    ],
)
def test_wrong_flags_are_named(
    words: list[str], change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *change]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and said in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--devices", "toy:1000001"], "at most 1000 of a kind, got 'toy:1000001'"),
        (["--devices", "toy:600,toy:600"], "at most 1000 of a kind"),
        (["--kv-bytes", "nan"], "expected numbers with commas, got 'nan'"),
        (["--budgets", "inf"], "expected numbers with commas, got 'inf'"),
        (["--caps", "7"], "expected shares above 0, at most 1, got '7'"),
    ],
)
def test_numbers_that_nothing_has_are_refused(
    words: list[str], change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, *change])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_goal_is_needed_and_one_that_nothing_keeps_fails(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [word for word in words if word not in ("--slo-ttft", "0.1", "--slo-tpot", "0.02")]
    assert main(bare) == 2
    assert "give --slo-ttft S and --slo-tpot S" in capsys.readouterr().err
    assert main([*words, "--slo-ttft", "0.0001"]) == 1
    assert "none of" in capsys.readouterr().err


def test_a_model_that_no_profile_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--workload", "alpaca", "--model", "opt-14b", "--devices", "a100-80g:1"]
    assert main([*words, "--slo-ttft", "1"]) == 2
    assert "unknown model 'opt-14b'; did you mean 'opt-13b'" in capsys.readouterr().err
    words = ["plan", "--workload", "alpaca", "--model", "opt-13b", "--devices", "a100:1"]
    assert main([*words, "--slo-ttft", "1"]) == 2
    assert "unknown device 'a100'; did you mean 'a100-80g'" in capsys.readouterr().err


def test_a_journal_is_planned_beside_its_own_configuration(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = toy_units(tmp_path, 1)[0]
    knobs = Knobs(policy="vllm", max_batch_tokens=128, prefill_chunk=128, kv_bytes=1e6)
    candidate = PlanCandidate(pools=(unit,), knobs=knobs)
    prepared = prepared_of(toy_problem(tmp_path), candidate, 20.0, WorkloadSlice(0, 120))
    run(prepared, Options(journal=tmp_path))
    flags = words[:1] + words[3:]  # without the trace
    assert main([*flags, "--journal", str(tmp_path / FILE_NAME), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["present"]["policy"] == "vllm" and found["present"]["goodput_rps"] > 0
    assert found["present"]["kept"] is False  # it has one of two devices
    assert "the journal's second half attained 9" in shown.err
    measured = found["measured"]["attainment"]
    assert 0.9 <= measured <= 1.0
    foretold = found["present"]["own_rate"]
    assert foretold["attainment"] == pytest.approx(measured, abs=0.05)
    assert 10 < foretold["rate_rps"] < 40
    assert found["predicted"]["own_rate"]["attainment"] >= foretold["attainment"]
    kept = [word for word in flags if word not in ("--devices", "toy:2")]
    assert main([*kept, "--journal", str(tmp_path / FILE_NAME)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("plan: 1 x toy")  # as many as the journal has
    assert "\nat its own " in page and "with the present one; spread" in page


def test_requests_that_came_all_at_once_have_no_rate_to_tell(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "burst.jsonl"
    row = {"timestamp": 0, "input_length": 40, "output_length": 8, "hash_ids": []}
    trace.write_text("\n".join([json.dumps(row)] * 60) + "\n")
    words[words.index("--trace") + 1] = str(trace)
    words[words.index("--requests") + 1] = "60"
    assert main([*words, "--slo-ttft", "9"]) == 0
    page = capsys.readouterr().out
    assert "\nall at once, as they came: 100" in page and "inf requests/s" not in page

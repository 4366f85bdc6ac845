"""Flags over a scenario file: each changes what it names; the rest stays as the file has it."""

import argparse
from pathlib import Path

import msgspec
import pytest

from daemon.cli import simulate
from daemon.cli.scenario_flags import scenario_of
from daemon.lab.simulator.run import prepare
from daemon.lab.simulator.scenario import (
    HandoffSpec,
    InstanceGroup,
    Scenario,
    ScenarioError,
    ScenarioLimits,
)
from daemon.lab.workload.workload import SloClass, WorkloadError, WorkloadSpec

FILE = """
policy = "vllm"
predictor = "oracle"
seed = 4

[workload]
name = "azure-conv"
requests = 300
rate_scale = 1.5
seed = 9

[[workload.classes]]
name = "chat"
share = 0.75
ttft_s = 1.0

[[workload.classes]]
name = "bulk"
share = 0.25

[[instance]]
profile = "opt-13b@a100-80g"
count = 2
kv_bytes = 1e9

[limits]
max_waiting = 50
swap = "reactive"
"""
CLASSES = (SloClass("chat", 0.75, ttft_s=1.0), SloClass("bulk", 0.25))


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.toml"
    file.write_text(FILE)
    return file


def test_a_file_alone_is_the_scenario(path: Path) -> None:
    assert scenario_of(parse(str(path))) == Scenario(
        workload=WorkloadSpec(
            name="azure-conv", requests=300, rate_scale=1.5, seed=9, classes=CLASSES
        ),
        instance=(InstanceGroup(profile="opt-13b@a100-80g", count=2, kv_bytes=1e9),),
        policy="vllm",
        predictor="oracle",
        seed=4,
        limits=ScenarioLimits(max_waiting=50, swap="reactive"),
    )


def test_flags_alone_are_a_scenario() -> None:
    made = scenario_of(
        parse(
            *("--workload", "alpaca", "--requests", "30", "--arrivals", "gamma:2", "--rate", "1.5"),
            *("--seed", "3", "--slo-ttft", "2", "--profile", "opt-13b@a100-80g"),
            *("--instances", "3", "--kv-bytes", "2e9", "--host-bytes", "0", "--power-cap", "0.5"),
            *(
                "--policy",
                "srtf",
                "--predictor",
                "noisy:0.4",
                "--swap",
                "recompute",
                "--starve-s",
                "2",
            ),
            *("--max-running", "8", "--block-size", "32", "--depth", "1", "--no-noise"),
            *("--drift", "2", "--shared-prefix", "64", "--prefix-groups", "3"),
            *("--decode-admission", "reserve_dynamic"),
            *("--link-bytes-per-s", "1e9", "--slo-gap", "3", "--n", "2", "--handoff", "layered"),
        )
    )
    assert made == Scenario(
        workload=WorkloadSpec(
            name="alpaca",
            requests=30,
            arrivals="gamma:2",
            rate=1.5,
            seed=3,
            classes=(SloClass(ttft_s=2.0, gap_s=3.0),),
            drift=2.0,
            shared_prefix=64,
            prefix_groups=3,
        ),
        instance=(
            InstanceGroup(
                profile="opt-13b@a100-80g",
                count=3,
                kv_bytes=2e9,
                host_bytes=0.0,
                link_bytes_per_s=1e9,
                power_cap=0.5,
            ),
        ),
        n=2,
        policy="srtf",
        predictor="noisy:0.4",
        seed=3,
        noise=False,
        limits=ScenarioLimits(
            max_running=8,
            block_size=32,
            depth=1,
            swap="recompute",
            decode_admission="reserve_dynamic",
            starve_s=2.0,
        ),
        handoff=HandoffSpec(mode="layered"),
    )


def test_a_promised_gap_bounds_pauses_unless_the_pause_is_given(path: Path) -> None:
    def pause_s(*flags: str) -> float:
        return scenario_of(parse(str(path), *flags)).max_pause_s

    assert (pause_s(), pause_s("--slo-gap", "3")) == (4.0, pytest.approx(2.4))
    assert pause_s("--slo", "a:gap=1.5") == pytest.approx(1.2)
    assert pause_s("--slo-gap", "3", "--max-pause-s", "2.5") == 2.5


def test_a_rate_takes_the_place_of_a_scale_and_the_reverse(path: Path) -> None:
    workload = scenario_of(parse(str(path), "--rate", "2")).workload
    assert (workload.rate, workload.rate_scale, workload.requests) == (2.0, 0.0, 300)
    path.write_text(FILE.replace("rate_scale = 1.5", 'rate = 2\narrivals = "poisson"'))
    workload = scenario_of(parse(str(path), "--rate-scale", "3")).workload
    assert (workload.rate, workload.rate_scale, workload.arrivals) == (0.0, 3.0, "")


def test_arrivals_take_the_place_of_a_traces_own_times(path: Path) -> None:
    workload = scenario_of(parse(str(path), "--arrivals", "closed")).workload
    assert (workload.arrivals, workload.rate_scale) == ("closed", 0.0)


def test_zero_is_a_value_too(path: Path) -> None:
    made = scenario_of(
        parse(str(path), "--seed", "0", "--max-waiting", "0", "--requests", "0", "--slo-ttft", "0")
    )
    assert (made.seed, made.workload.seed, made.workload.requests) == (0, 0, 0)
    assert made.limits.max_waiting == 0
    assert made.workload.classes == (SloClass(),)


@pytest.mark.parametrize(
    ("flags", "trace", "name"),
    [
        (("--workload", "sharegpt"), None, "sharegpt"),
        (("--trace", "other.csv"), Path("other.csv"), ""),
        (("--trace", "other.csv", "--workload", "skew"), Path("other.csv"), "skew"),
    ],
)
def test_another_workload_keeps_what_the_file_says_of_it(
    path: Path, flags: tuple[str, ...], trace: Path | None, name: str
) -> None:
    before = scenario_of(parse(str(path))).workload
    after = scenario_of(parse(str(path), *flags)).workload
    assert after == msgspec.structs.replace(before, trace=trace, name=name)
    more = scenario_of(parse(str(path), *flags, "--requests", "5", "--slo", "all")).workload
    assert (more.requests, more.classes, more.seed) == (5, (SloClass("all"),), 9)


@pytest.mark.parametrize(
    ("flags", "error", "fault"),
    [
        ((), ScenarioError, "give --profile NAME, or a scenario file"),
        (("--profile", "x"), WorkloadError, "--trace FILE or --workload NAME"),
        (("FILE", "--slo", "a", "--slo-ttft", "1"), WorkloadError, "--slo names classes"),
        (("missing.toml",), ScenarioError, "missing.toml: No such file"),
    ],
)
def test_what_makes_no_scenario(
    path: Path, flags: tuple[str, ...], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        scenario_of(parse(*(str(path) if flag == "FILE" else flag for flag in flags)))


def test_one_profile_is_not_for_two_groups(path: Path) -> None:
    path.write_text(FILE.replace("[limits]", '[[instance]]\nprofile = "x"\n[limits]'))
    assert len(scenario_of(parse(str(path), "--kv-bytes", "5")).instance) == 2
    for flags in (("--profile", "y"), ("--instances", "3")):
        with pytest.raises(ScenarioError, match=r"need a scenario with one \[\[instance\]\]"):
            scenario_of(parse(str(path), *flags))


def test_instances_by_their_devices_are_the_profiles_variants(path: Path) -> None:
    made = scenario_of(parse(str(path), "--instance", "cuda:0,1:tp2", "cuda:2,3:pp2", "cuda:4"))
    names = [group.profile_name for group in made.instance]
    assert names == ["opt-13b@a100-80g-tp2", "opt-13b@a100-80g-pp2", "opt-13b@a100-80g"]
    assert [group.count for group in made.instance] == [1, 1, 1]
    assert {group.kv_bytes for group in made.instance} == {1e9}
    plan = prepare(msgspec.structs.replace(made, predictor="none"))
    assert [(one.tp, one.pp) for one in plan.profiles] == [(2, 1), (1, 2), (1, 1)]


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--instance", "cuda:0", "--instances", "2"), "--instance goes without --instances"),
        (("--instance", "cuda:0", "cuda:0"), "simulated instances share no device"),
        (("--instance", "cpu"), "'cpu': opt-13b@a100-80g is of 1 x "),
        (("--instance", "cuda:0", "--profile", "opt-13b@a100-80g-tp2"), "is of 2 x "),
    ],
)
def test_instances_that_cannot_be_simulated(path: Path, flags: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ScenarioError, match=fault):
        prepare(scenario_of(parse(str(path), *flags)))


@pytest.mark.parametrize(
    ("flag", "value"), [("--max-running", "0"), ("--block-size", "0"), ("--max-len", "-1")]
)
def test_sizes_that_no_machine_has(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(flag, value)
    assert f"{flag}: must be at least" in capsys.readouterr().err


def test_a_mistyped_key_of_a_file_is_told_with_what_was_meant(path: Path) -> None:
    for right, wrong in (("policy", "polcy"), ("max_waiting", "max_wating"), ("ttft_s", "tfft_s")):
        path.write_text(FILE.replace(right, wrong))
        with pytest.raises(ScenarioError, match=f"{wrong}.*; did you mean '{right}'"):
            scenario_of(parse(str(path)))

"""Too little, too disturbed, too narrow: said of a fit, or no fit at all."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.lab.profiler.experiments import HELD_OUT, Kind
from daemon.lab.profiler.fit import fit
from daemon.lab.profiler.host import CpuTimes, cpu_times
from daemon.lab.profiler.points import Point
from daemon.lab.profiler.quality import lacks, refuse_unfit
from daemon.lab.profiles.errors import ProfileError
from tests.lab.profiler.truth import Truth, measured

WANTED = [replace(point, samples_s=()) for point in measured(Truth(), 0.0)]


def doubts(points: list[Point], used_by_others: float = 0.0) -> tuple[str, ...]:
    refuse_unfit(points, WANTED)
    return tuple(lacks(points, WANTED, fit(points), used_by_others))


def test_a_quiet_machine_with_time_lacks_nothing() -> None:
    assert doubts(measured(Truth(), 0.01), used_by_others=0.05) == ()


def test_one_decode_is_no_curve() -> None:
    points = measured(Truth(), 0.005)
    tokens = [point for point in points if point.kind is Kind.TOKENS]
    decode = next(point for point in points if point.kind is Kind.DECODE)
    with pytest.raises(
        ProfileError,
        match=r"too little was measured: 1 of \d+ numbers of decodes, 1 of 4 contexts of decodes; "
        r"allow more time \(--budget-s\)",
    ):
        doubts([*tokens, decode])


def test_a_worker_of_one_slot_is_measured_as_far_as_it_goes() -> None:
    points = [point for point in measured(Truth(), 0.01) if point.work.num_decodes <= 1]
    refuse_unfit(points, points)


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (lambda p: p.kind not in HELD_OUT, "no step was held out"),
        (
            lambda p: p.work.num_tokens < 100,
            r"nothing beyond \d+ tokens of a step was measured, where up to 512 can come",
        ),
        (lambda p: p.work.num_decodes < 20, r"nothing beyond \d+ decodes of a step"),
        (
            lambda p: p.kind is not Kind.DECODE or p.work.decode_context < 300 * p.work.num_decodes,
            r"nothing beyond \d+ tokens of context was measured, where up to 4,\d+ can come",
        ),
    ],
)
def test_what_was_never_measured_is_said(keep: object, said: str) -> None:
    assert callable(keep)
    found = doubts([point for point in measured(Truth(), 0.01) if keep(point)])
    assert any(re.search(said, one) for one in found), found


def test_single_measurements_say_nothing_of_variation() -> None:
    (said,) = doubts(measured(Truth(), 0.01, repeats=1))
    assert said.endswith("kinds of step were measured once only")


def test_what_others_did_is_said() -> None:
    (said,) = doubts(measured(Truth(), 0.01), used_by_others=0.434)
    assert said == "other processes used 43% of the cores meanwhile"


def test_steps_that_vary_are_said() -> None:
    found = " ".join(doubts(measured(Truth(), 0.5)))
    assert "took over 1.25 times the fastest" in found and "the error of steps held out is" in found


def stat(proc: Path, cpus: dict[int, int], own: dict[int, int]) -> Path:
    """A /proc in which each CPU and each process has used so many ticks."""
    proc.mkdir(exist_ok=True)
    lines = [f"cpu{cpu} {ticks} 0 0 9999 77 0 0 0 0 0" for cpu, ticks in cpus.items()]
    (proc / "stat").write_text("\n".join(["cpu 1 1 1 1 1 1 1 1 1 1", *lines, "ctxt 5", ""]))
    for pid, ticks in own.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        fields = f"{pid} (a b) c) S " + "1 " * 10 + f"{ticks} 0 0 0"
        (proc / str(pid) / "stat").write_text(fields)
    return proc


def test_others_are_whoever_is_not_known(tmp_path: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    proc = stat(tmp_path / "proc", {0: 0, 1: 0, 2: 0}, {7: 0, 8: 0})
    before = cpu_times((0, 1), (7, 8), proc)
    stat(proc, {0: 4 * second, 1: 3 * second, 2: 9 * second}, {7: second, 8: 4 * second})
    after = cpu_times((0, 1), (7, 8), proc)
    assert (after.busy_s, after.own_s) == (7.0, 5.0)
    after = CpuTimes(before.at_s + 10.0, after.busy_s, after.own_s)
    assert after.used_by_others(before, 2) == pytest.approx(0.1)


def test_where_the_kernel_tells_nothing_nobody_is_blamed(tmp_path: Path) -> None:
    nothing = cpu_times((0,), (1,), tmp_path)
    assert CpuTimes(nothing.at_s + 1.0, 0.0, 0.0).used_by_others(nothing, 1) == 0.0


def test_this_machine_counts_this_process() -> None:
    """Half is enough: the kernel counts a processor's ticks and a process's apart."""
    before = cpu_times(os.sched_getaffinity(0), (os.getpid(),))
    while cpu_times(os.sched_getaffinity(0), (os.getpid(),)).own_s < before.own_s + 0.2:
        sum(range(100_000))
    after = cpu_times(os.sched_getaffinity(0), (os.getpid(),))
    assert after.busy_s > before.busy_s + 0.1

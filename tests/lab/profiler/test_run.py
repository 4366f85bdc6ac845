"""The real worker of a tiny model, measured end to end; and the command around it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemon.cli.main import main
from daemon.cost.profile import Operators
from daemon.cost.step_cost import SumOfOperators, step_cost
from daemon.cost.work import StepWork
from daemon.journal.records import FILE_NAME
from daemon.lab.profiler.experiments import Kind
from daemon.lab.profiler.measure import measure
from daemon.lab.profiler.synthetic import PlanMaker
from daemon.lab.profiler.worker import MeasuredWorker
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile
from daemon.supervisor.spare import WORKER
from tests.core.driver import Driver, configured
from tests.engine.process import cpu_load
from tests.journal.life import record
from tests.nursery.home import nursery
from tests.supervisor.model_folder import write_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", autouse=True)
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Real workers that start at once."""
    with (
        pytest.MonkeyPatch.context() as patch,
        nursery(tmp_path_factory.mktemp("nursery"), "tests.nursery.engine") as env,
    ):
        for name, value in env.items():
            patch.setenv(name, value)
        yield


def test_a_tiny_model_is_profiled(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "tiny.json"
    flags = ["--max-batch-tokens", "48", "--set", "scheduler.max_running=8", "--kv-blocks", "64"]
    arguments = ["profile", "--model", str(folder), "--out", str(out), "--budget-s", "5", *flags]
    assert main([*arguments, "--name", "tiny@here"]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith(str(out)) and "held out" in printed
    assert "target forward size" in printed and "steps of up to " in printed
    profile = load_profile(str(out))
    assert profile.name == "tiny@here" and profile.model.num_layers == 1
    assert profile.model.dtype == "float32" and profile.device.name.startswith("cpu-")
    assert isinstance(profile.step, Operators)
    assert profile.fit.num_points > 20
    assert np.isfinite(profile.fit.mape) and profile.fit.noise_sigma >= 0.0
    assert 0.0 < profile.edges.gap_s < 0.1
    assert profile.device.host_link.bytes_per_s > 1e8 and profile.device.flops > 1e8
    assert profile.device.memory_bytes > 1e8
    alone = profile.operators
    assert alone is not None and "operators alone" in printed and alone.num_points > 50
    products = {"query_key_value", "output", "gate_up", "down"}
    assert {one.name for one in alone.tokens_s} == products | {
        *("embedding", "norm", "rope", "activation")
    }
    assert {one.name for one in alone.sampled_s} == {"head", "sampler"}
    assert all(min(one.time_s.value) > 0.0 for one in (*alone.tokens_s, *alone.sampled_s))
    assert 0.0 < SumOfOperators(alone).step_s(StepWork(1, 20, (), 1)) < 0.5
    cost = step_cost(profile.step)
    assert 1e-5 < cost.step_s(StepWork(1, 20, (), 1)) < 0.5
    assert cost.step_s(StepWork(0, 0, ((48, 0),), 1)) > 1e-5


async def test_every_experiment_is_measured_in_time(folder: Path) -> None:
    told: list[float] = []
    load = cpu_load(str(folder))
    measured = await measure(load, 6.0, lambda share, _what: told.append(share))
    assert told == sorted(told)
    assert len(measured.points) > 20
    assert {Kind.TOKENS, Kind.DECODE} <= {point.kind for point in measured.points}
    assert all(min(point.samples_s) > 0.0 for point in measured.points)
    assert all(len(point.samples_s) <= 12 for point in measured.points)
    assert measured.gap_s > 0.0 and measured.block_bytes > 0


async def test_a_model_that_cannot_load_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="profile"):
        async with MeasuredWorker(cpu_load(str(tmp_path))):
            pass


async def test_a_worker_that_dies_is_told_and_none_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKER)  # a quick one's fork may answer once more
    opening = PlanMaker(block_size=16, max_slots=8).opening()
    worker = MeasuredWorker(cpu_load(str(folder)))

    async def killed() -> None:
        async with worker:
            await worker.run(opening)
            os.kill(worker.pid, signal.SIGKILL)
            await worker.run(opening)

    with pytest.raises(ProfileError, match="died"):
        await killed()
    assert worker.pid == 0


def test_a_journal_fits_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver(configured(), 200)
    for length in range(10, 60, 5):
        driver.arrive(list(range(length)), max_tokens=12)
    driver.settle()
    record(tmp_path, driver)
    out = tmp_path / "new.json"
    journal = ["--from-journal", str(tmp_path / FILE_NAME), "--out", str(out)]
    checked = [*journal, "--profile", "opt-13b@a100-80g", "--check", str(tmp_path / FILE_NAME)]
    assert main(["profile", *checked]) == 0
    shown = capsys.readouterr().out
    assert str(out) in shown and "between steps " in shown
    assert "on 10 requests of " in shown and "a request's time, in the median: " in shown
    new, old = load_profile(str(out)), load_profile("opt-13b@a100-80g")
    assert new.model == old.model and new.step != old.step
    assert new.fit.num_points > 10


@pytest.mark.parametrize(
    ("status", "flags", "fault"),
    [
        (2, ["--from-journal", "x"], "--profile"),
        (2, ["--check", "x"], "--profile"),
        (
            1,
            ["--from-journal", "x", "--profile", "no-such@device", "--out", "y"],
            "unknown profile",
        ),
        (2, ["--budget-s", "0"], "at least 2 s"),
        (2, ["import", "nothing", "x", "--model", "opt-13b"], "unknown kind of table"),
        (2, ["import", "vidur", "x", "--model", "opt-13b", "--tp", "0"], "--tp must be at least 1"),
        (1, ["import", "distserve", "missing.json", "--model", "opt-13b"], "missing.json"),
        (1, ["--model", "no-such-folder"], "no-such-folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    status: int, flags: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *flags]) == status
    error = capsys.readouterr().err
    assert fault in error and error.startswith("llmd: ") and error.count("\n") == 1

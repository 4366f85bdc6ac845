"""What was learned outlives clocks that err and files that cannot be read."""

import logging
from pathlib import Path

import pytest

from daemon.config.schema import PredictConfig
from daemon.length_models.store_file import from_bytes
from daemon.predictor import keeper
from daemon.predictor.keeper import DAY_S, Keeper
from daemon.predictor.request_predictor import RequestPredictor
from daemon.protocol.predictor import Ask, Ended

CONFIG = PredictConfig(kind="mean", max_age_days=30.0)


class Clocks:
    """What `time` is to the keeper."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1.8e9, 500.0

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.steady_s

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(keeper, "time", clocks)
    return clocks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.lengths"


def life(path: Path, count: int) -> Keeper:
    """A predictor that learns of so many requests and ends."""
    kept = Keeper(path, CONFIG)
    predictor = RequestPredictor(CONFIG, kept)
    for request in range(count):
        predictor.predict(Ask(request, "x", 5, 100), None)
        predictor.learn(Ended(request, 40))
    kept.save()
    return kept


def num_rows(path: Path) -> int:
    kept, fault = from_bytes(path.read_bytes())
    assert not fault
    return len(kept)


def test_rows_grow_old_while_the_process_runs(clocks: Clocks, path: Path) -> None:
    kept = life(path, 5)
    clocks.pass_by(29 * DAY_S)
    kept.tick()
    assert len(kept.store) == 5
    clocks.pass_by(2 * DAY_S)
    kept.tick()
    assert len(kept.store) == 0


def test_rows_grow_old_over_short_pauses(clocks: Clocks, path: Path) -> None:
    life(path, 5)
    for _ in range(31 * 2 - 1):
        clocks.pass_by(DAY_S / 2)
        assert len(life(path, 1).store) > 5
    clocks.pass_by(DAY_S / 2)
    life(path, 1)
    assert num_rows(path) == 61, "the first five and the first of 62 are too old"


@pytest.mark.parametrize("days", [31, 4000, -31, -1, -0.01])
def test_a_clock_that_leaps_while_it_runs_costs_nothing(
    clocks: Clocks, path: Path, days: float
) -> None:
    kept = life(path, 5)
    clocks.wall_s += days * DAY_S
    kept.tick()
    assert len(kept.store) == 5


@pytest.mark.parametrize("days", [31, 4000, -31, -1, -0.01, -1.8e9 / DAY_S])
def test_a_start_before_the_clock_is_set_costs_nothing(
    clocks: Clocks, path: Path, days: float
) -> None:
    life(path, 50)
    right_s = clocks.wall_s
    clocks.wall_s += days * DAY_S
    assert len(life(path, 1).store) == 51
    clocks.wall_s = right_s + 60.0
    kept = life(path, 1)
    assert len(kept.store) == 52
    assert kept.store.rows["time_s"][-1] == clocks.wall_s, "no row is of the future"


def test_a_file_that_cannot_be_read_is_kept(
    clocks: Clocks, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life(path, 50)
    whole = path.read_bytes()

    def unreadable(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(keeper, "read_file", unreadable)
        life(path, 1)
    aside = path.with_name("tiny.lengths.corrupt")
    assert aside.read_bytes() == whole and num_rows(path) == 1
    assert "Permission denied" in caplog.text and aside.name in caplog.text


def test_a_file_that_cannot_be_moved_either_is_not_written_over(
    clocks: Clocks, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life(path, 50)
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(keeper, "set_aside", lambda _: None)
        assert life(path, 1).changed, "what was learned is not on disk"
    assert path.read_bytes() == damaged and "nothing is saved" in caplog.text

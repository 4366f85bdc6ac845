"""What is said of workers that load: how far, how long still, and how long it took."""

import os
from pathlib import Path

import pytest

from daemon.protocol.worker import Loading
from daemon.runtime.loads import Loads
from daemon.runtime.start_times import MOST_KEPT, LoadClock, Stages, StartTimes

LAST = {"imports": 3.0, "weights": 10.0, "warm-up": 2.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that `Loads` reads, for the test to set."""
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    return now_s


def test_the_time_left_goes_by_the_last_start() -> None:
    clock = LoadClock(LAST)
    assert clock.left_s(0.0) == -1.0, "nothing has begun"
    clock.reached("imports", 0.0)
    assert clock.left_s(1.0) == 14.0
    clock.reached("weights", 1.5)
    clock.reached("weights", 4.0)
    assert clock.left_s(4.5) == 9.0
    assert clock.left_s(60.0) == 2.0, "late as it is, what comes after still comes"
    clock.reached("unheard of", 61.0)
    assert clock.left_s(61.0) == -1.0
    assert clock.took(62.0) == {"imports": 1.5, "weights": 59.5, "unheard of": 1.0}
    assert LoadClock({}).left_s(0.0) == -1.0


def test_a_counted_stage_goes_on_as_it_went() -> None:
    clock = LoadClock(LAST)
    clock.reached("imports", 0.0)
    clock.reached("weights", 3.0, 0.0)
    clock.reached("weights", 3.1, 0.01)
    assert clock.left_s(4.0) == 11.0, "too little to go by"
    clock.reached("weights", 23.0, 0.5)
    assert clock.left_s(23.0) == 22.0 and clock.left_s(28.0) == 17.0
    assert clock.fraction(28.0) == 28.0 / 45.0
    first = LoadClock({})
    first.reached("weights", 0.0, 0.0)
    first.reached("weights", 6.0, 0.6)
    assert first.left_s(6.0) == pytest.approx(4.0)
    assert first.fraction(6.0) == -1.0, "what comes after is not known"


def test_a_conversion_is_told_as_it_goes(clock: list[float]) -> None:
    loads = Loads()
    assert loads.converts(0.0) and loads.bar().startswith("converting the model [.")
    clock[0] += 3.0
    assert loads.converts(0.25) and not loads.converts(0.251)
    assert loads.sentence() == "loading: converting the model 25%, about 9 s left"
    assert loads.bar().endswith("]  25%  9 s left")
    assert loads.converts(1.0) and loads.sentence() == loads.bar() == ""


def keep(path: Path, what: str, stages: Stages) -> None:
    times = StartTimes(path)
    times.keep(what, stages)
    times.write()


def test_a_disk_that_stalls_holds_up_nobody(tmp_path: Path) -> None:
    """A pipe that nobody reads: whoever opens it to write waits for ever."""
    times = StartTimes(tmp_path / "starts.json")
    os.mkfifo(tmp_path / f".starts.json.{os.getpid()}")
    loads = Loads()
    loads.remember(times, ["small"])
    loads.came(0, Loading("imports", 0.0))
    assert loads.ended(0).startswith("ready after 0.0 s (imports ")
    assert times.last("small").keys() == {"imports"}


def test_starts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "starts.json"
    assert StartTimes(path).last("a") == {}
    keep(path, "a", LAST)
    keep(path, "b", {"weights": 1.23456})
    assert StartTimes(path).last("a") == LAST
    assert StartTimes(path).last("b") == {"weights": 1.235}
    for number in range(MOST_KEPT):
        keep(path, f"model {number}", LAST)
    assert StartTimes(path).last("a") == {}, "the oldest ones are forgotten"
    assert [one.name for one in path.parent.iterdir()] == ["starts.json"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"a": 3}', '{"a": {"weights": "long"}}', "\0", "[" * 100_000),
        *(f'{{"a": {{"weights": {odd}}}}}' for odd in ("NaN", "Infinity", "-1", "1" + "0" * 400)),
    ],
)
def test_a_file_that_makes_no_sense_is_no_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    path.write_text(text)
    assert StartTimes(path).last("a") == {}
    keep(path, "a", LAST)
    assert StartTimes(path).last("a") == LAST


def test_a_folder_that_takes_nothing_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    keep(tmp_path / "file" / "starts.json", "a", LAST)
    assert "is not kept" in caplog.text


def test_a_start_is_told_as_it_goes_and_kept_for_the_next(
    tmp_path: Path, clock: list[float]
) -> None:
    times = StartTimes(tmp_path / "starts.json")
    loads = Loads()
    loads.remember(times, ["small", "large"])
    assert loads.sentence() == ""
    assert loads.came(0, Loading("imports", 0.0))
    clock[0] += 3.0
    assert loads.came(0, Loading("weights", 0.1))
    clock[0] += 20.0
    assert not loads.came(0, Loading("weights", 0.6)), "the same stage"
    assert loads.sentence() == "loading: weights 60%, about 3 s left", "at the pace so far"
    assert loads.bar().startswith("weights              [##################............]  60%")
    assert loads.ended(0) == "ready after 23.0 s (imports 3.0 s, weights 20.0 s)"
    assert loads.ended(0) == "ready" and loads.sentence() == ""

    loads.came(0, Loading("imports", 0.0))
    clock[0] += 1.0
    assert loads.sentence() == "loading: imports 0%, about 22 s left"
    assert loads.bar() == f"imports              [#{'.' * 29}]   4%  22 s left", "by time"
    loads.came(0, Loading("weights", 0.5))
    loads.came(1, Loading("weights", 0.2))
    assert loads.sentence() == "loading: weights 20%", "of the one that has furthest to go"
    assert loads.ended(0) == "ready after 1.0 s (imports 1.0 s, weights 0.0 s)"
    loads.came(0, Loading("weights", 0.5))
    clock[0] += 7.0
    assert loads.ended(0) == "ready after 7.0 s (weights 7.0 s)"
    assert times.last("small")["imports"] == 1.0, "a spare's start is not kept"
    loads.lost(1)
    assert loads.sentence() == ""
    assert Loads().ended(0) == "ready"


def test_after_a_death_the_time_without_a_worker_is_said(clock: list[float]) -> None:
    loads = Loads()
    loads.came(0, Loading("weights", 0.5))
    loads.ended(0)
    clock[0] += 100.0
    loads.lost(0)
    clock[0] += 2.0  # until another one begins
    loads.came(0, Loading("imports", 0.0))
    clock[0] += 9.0
    loads.lost(0)  # which dies too
    clock[0] += 1.0
    loads.came(0, Loading("imports", 0.0))
    clock[0] += 7.0
    said = "ready 19.0 s after the one before it was lost (imports 7.0 s)"
    assert loads.ended(0) == said
    loads.came(0, Loading("weights", 0.0))
    clock[0] += 5.0
    assert loads.ended(0) == "ready after 5.0 s (weights 5.0 s)"

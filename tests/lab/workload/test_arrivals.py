"""Arrival processes: counts, order, mean rates and spreads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.lab.workload.arrivals import PROCESSES, draw_arrivals
from daemon.lab.workload.workload import Float64, WorkloadError

TEXTS = ["poisson", "gamma:4", "gamma:0.5", "closed", "uniform", "burst:8", "diurnal:0.9"]


def _drawn(text: str, count: int, rate: float, seed: int = 1) -> Float64:
    return draw_arrivals(text, count, rate, np.random.default_rng(seed))


def _cv(times_s: Float64) -> float:
    gaps_s = np.diff(times_s, prepend=0.0)
    return float(gaps_s.std() / gaps_s.mean())


def test_every_process_is_tried_here() -> None:
    tried = {text.partition(":")[0] for text in TEXTS}
    assert tried == {text.partition(":")[0] for text in PROCESSES}


@given(
    text=st.sampled_from(TEXTS),
    count=st.integers(1, 300),
    rate=st.floats(1e-3, 1e4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_times_begin_with_the_run_and_never_fall(
    text: str, count: int, rate: float, seed: int
) -> None:
    times_s = _drawn(text, count, rate, seed)
    assert times_s.shape == (count,)
    assert times_s[0] >= 0 and np.isfinite(times_s).all()
    assert (np.diff(times_s) >= 0).all()
    assert np.array_equal(times_s, _drawn(text, count, rate, seed))
    assert _drawn(text, count, 2 * rate, seed) == pytest.approx(times_s / 2)


@pytest.mark.parametrize("text", [text for text in TEXTS if text != "closed"])
def test_the_mean_rate_is_the_one_asked_for(text: str) -> None:
    times_s = _drawn(text, 50_000, 3.0)
    assert 50_000 / times_s[-1] == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("text", "cv"),
    [("poisson", 1), ("gamma:4", 4), ("gamma:1", 1), ("gamma:0.5", 0.5), ("uniform", 0)],
)
def test_gaps_spread_as_asked(text: str, cv: float) -> None:
    assert _cv(_drawn(text, 50_000, 64.0)) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_closed_means_all_at_the_start_at_any_rate() -> None:
    assert not _drawn("closed", 5, 0.0).any()
    assert not _drawn("closed", 5, 7.0).any()


def test_uniform_gives_the_first_request_a_gap_of_its_own() -> None:
    assert _drawn("uniform", 3, 4.0).tolist() == [0.25, 0.5, 0.75]


def test_bursts_come_together_and_between_them_the_gaps_are_exponential() -> None:
    times_s = _drawn("burst:8", 40_001, 5.0)
    starts_s, sizes = np.unique(times_s, return_counts=True)
    assert set(sizes[:-1]) == {8} and sizes[-1] == 1
    assert _cv(starts_s) == pytest.approx(1, rel=0.05)


def test_a_day_has_a_quiet_night_and_a_busy_noon() -> None:
    times_s = _drawn("diurnal:0.8", 80_000, 2.0)
    shares = np.histogram(times_s / times_s[-1], bins=8, range=(0, 1))[0] / 80_000
    edges = np.linspace(0, 1, 9)
    served = edges - 0.8 * np.sin(2 * np.pi * edges) / (2 * np.pi)
    assert shares == pytest.approx(np.diff(served), abs=0.005)
    assert shares[4] > 5 * shares[0]


def test_a_day_without_swing_is_poisson() -> None:
    assert _drawn("diurnal:0", 500, 2.0) == pytest.approx(_drawn("poisson", 500, 2.0))


@pytest.mark.parametrize(
    "text",
    [
        *("", "possion", "poisson:2", "closed:1", "gamma", "gamma:", "gamma:x", "gamma:0"),
        *("gamma:nan", "gamma:-1", "burst:0", "burst:1.5", "burst:inf", "diurnal:1.1"),
    ],
)
def test_what_makes_no_process_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="arrivals: "):
        _drawn(text, 3, 1.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_process_needs_a_rate(rate: float) -> None:
    with pytest.raises(WorkloadError, match="rate: "):
        _drawn("poisson", 3, rate)

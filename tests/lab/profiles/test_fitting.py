"""Fits see what a straight line does not, and never fall."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.lab.profiles.fitting import fit_curve, growing, mape, medians, smoothed
from daemon.lab.profiles.grids import complete, smooth, surface_of
from tests.lab.profiles.tables import TOKENS, tiled_ms

TIMES = st.lists(st.floats(0.01, 10.0), min_size=3, max_size=30)


def test_a_fit_shows_the_steps_that_a_line_misses() -> None:
    # Left out are the rows right behind a tile, where a straight line errs most.
    left_out = [tokens for tokens in TOKENS if tokens > 128 and tokens % 64 == 8]
    seen = [tokens for tokens in TOKENS if tokens not in left_out]
    times = [tiled_ms(tokens) for tokens in seen]
    curve, line = fit_curve(seen, times), np.polyfit(seen, times, 1)
    assert curve(129) > 1.2 * curve(128)
    truths = [tiled_ms(tokens) for tokens in left_out]
    assert mape([curve(tokens) for tokens in left_out], truths) < 0.005
    assert mape(np.polyval(line, left_out).tolist(), truths) > 0.04


def test_a_step_is_a_jump_right_behind_the_tile() -> None:
    times = [0.1 if tokens <= 128 else 0.2 for tokens in TOKENS]
    curve = fit_curve(TOKENS, times)
    assert curve(128) == 0.1 and curve(129) == 0.2
    assert len(curve.at) <= 6


def test_a_line_costs_two_knots() -> None:
    at = list(range(1, 200))
    assert len(fit_curve(at, [3.0 + 0.5 * x for x in at]).at) == 2


def test_knots_run_out() -> None:
    at = list(range(1, 400))
    curve = fit_curve(at, [x**3 for x in at], tolerance=0.0, max_knots=12)
    assert len(curve.at) == 12


@given(TIMES)
def test_curves_never_fall(times: list[float]) -> None:
    curve = fit_curve(range(1, len(times) + 1), times)
    values = [curve(x) for x in range(1, len(times) + 1)]
    assert values == sorted(values)


@given(TIMES)
def test_growing_keeps_the_mean_and_what_grows_already(times: list[float]) -> None:
    grown = growing(np.asarray(times))
    assert bool(np.all(np.diff(grown) >= -1e-12))
    assert grown.mean() == pytest.approx(np.mean(times))
    assert growing(np.asarray(sorted(times))).tolist() == sorted(times)


def test_medians_and_running_medians() -> None:
    places, values = medians([2.0, 1.0, 2.0, 2.0], [5.0, 1.0, 7.0, 6.0])
    assert places.tolist() == [1.0, 2.0] and values.tolist() == [1.0, 6.0]
    assert smoothed(np.asarray([1.0, 9.0, 1.0, 1.0, 1.0]), 3).tolist() == [5.0, 1.0, 1.0, 1.0, 1.0]


def test_missing_cells_grow_with_row_times_column() -> None:
    cells = {(n, s): 1.0 + 0.01 * n * s for n in (1, 10, 20) for s in (0, 50, 100) if n * s < 2000}
    _, _, values = complete(cells)
    assert values[2, 2] == pytest.approx(1.0 + 0.01 * 20 * 100)


def test_a_surface_repeats_its_cells_and_grows_both_ways() -> None:
    cells = {
        (n, s): 0.01 + 1e-6 * n * (n + 2 * s) for n in range(16, 300, 16) for s in range(0, 999, 99)
    }
    surface = surface_of(cells)
    errors = [abs(surface(n, s) / value - 1.0) for (n, s), value in cells.items()]
    assert max(errors) < 0.04
    noisy = np.random.default_rng(1).random((9, 7))
    grown = smooth(noisy)
    assert bool(np.all(np.diff(grown, axis=0) >= 0)) and bool(np.all(np.diff(grown, axis=1) >= 0))
    assert grown.mean() == pytest.approx(noisy.mean(), rel=0.15)

"""Fits of a made-up engine: the truth is known, so the error is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiler.experiments import HELD_OUT, Kind, experiments
from daemon.lab.profiler.fit import fit, step_errors
from daemon.lab.profiler.points import Point, disturbed_share
from daemon.lab.profiler.synthetic import PlanMaker
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.table import error_words
from tests.lab.profiler.truth import LIMITS, Truth, measured

SMOOTH = Truth(tile_share=0.0)
GPU = Truth(
    fixed_s=0.004,
    token_s=2e-5,
    tile=128,
    tile_share=0.9,
    sample_s=2e-6,
    context_s=2e-8,
    decode_s=1e-6,
    chunk_s=1e-5,
    pair_s=1e-10,
)


def mean_error(truth: Truth, points: list[Point], kinds: frozenset[Kind]) -> float:
    """Of the fit to `points`, against the truth without noise."""
    operators = fit(points).operators
    errors = step_errors(operators, measured(truth, 0.0))
    return float(np.mean([abs(e) for kind in kinds for e in errors[kind]]))


@pytest.mark.parametrize("truth", [SMOOTH, Truth(), GPU], ids=["smooth", "tiles", "gpu"])
def test_without_noise_the_truth_comes_back(truth: Truth) -> None:
    points = measured(truth, 0.0)
    assert mean_error(truth, points, HELD_OUT) < 0.015
    assert mean_error(truth, points, frozenset(Kind) - HELD_OUT) < 0.006


@given(
    fixed_s=st.floats(0.001, 0.1),
    token_s=st.floats(1e-5, 3e-3),
    context=st.floats(1e-4, 5e-3),
    pair=st.floats(1e-6, 1e-4),
    sample=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_noise_is_averaged_and_not_learned(
    fixed_s: float, token_s: float, context: float, pair: float, sample: float, seed: int
) -> None:
    truth = replace(
        SMOOTH,
        fixed_s=fixed_s,
        token_s=token_s,
        context_s=context * token_s,
        pair_s=pair * token_s,
        sample_s=sample * token_s,
        decode_s=0.1 * token_s,
        chunk_s=0.1 * fixed_s,
    )
    sigma = 0.03
    assert mean_error(truth, measured(truth, sigma, seed), HELD_OUT) < 1.5 * sigma


def test_a_tile_step_is_kept_and_a_line_costs_no_knots() -> None:
    tiles = fit(measured(GPU, 0.01)).operators
    cost = step_cost(tiles)

    def chunk_s(count: int) -> float:
        return cost.step_s(StepWork(0, 0, ((count, 0),), 1))

    rise = GPU.token_s * GPU.tile * GPU.tile_share
    assert chunk_s(129) - chunk_s(128) == pytest.approx(rise, rel=0.25)
    assert chunk_s(257) - chunk_s(256) == pytest.approx(rise, rel=0.25)
    assert chunk_s(120) - chunk_s(100) < 0.5 * rise
    smooth = fit(measured(SMOOTH, 0.0)).operators
    assert len(smooth.tokens_s.at) <= 6 < len(tiles.tokens_s.at)


def test_the_error_is_taken_on_what_no_fit_saw() -> None:
    points = measured(Truth(), 0.02)
    honest = fit(points)

    def slower(point: Point) -> Point:
        return replace(point, samples_s=tuple(1.5 * s for s in point.samples_s))

    shifted = [slower(point) if point.kind in HELD_OUT else point for point in points]
    found = fit(shifted)
    assert found.operators == honest.operators, "held-out steps changed the fit"
    assert honest.fit.mape < 0.04
    assert found.fit.mape == pytest.approx(1 / 3, abs=0.05)
    assert honest.fit.num_points == sum(point.kind not in HELD_OUT for point in points)


def test_without_held_out_steps_the_error_is_not_known() -> None:
    points = [point for point in measured(Truth(), 0.02) if point.kind not in HELD_OUT]
    found = fit(points).fit
    assert found.mape == 0.0 and error_words(found) == "not known"
    assert found.num_points == len(points)
    assert found.noise_sigma > 0.0
    assert error_words(fit(measured(Truth(), 0.02)).fit).endswith("%")


def test_noise_is_measured() -> None:
    found = fit(measured(SMOOTH, 0.05, repeats=8))
    assert found.repeat_sigma == pytest.approx(0.05, rel=0.35)
    assert found.fit.noise_sigma == pytest.approx(0.05, rel=0.35)
    assert fit(measured(SMOOTH, 0.0)).repeat_sigma == 0.0


def test_disturbed_measurements_do_not_count() -> None:
    calm = measured(Truth(), 0.01)
    disturbed = [
        replace(point, samples_s=(*point.samples_s[:2], 3.0 * point.samples_s[0])) for point in calm
    ]
    assert disturbed_share(disturbed) == pytest.approx(1 / 3)
    assert fit(disturbed).fit.mape < 0.03


def test_no_term_is_negative_nor_falls_with_context() -> None:
    operators = fit(measured(Truth(), 0.1)).operators
    for surface in (operators.decode_s, operators.prefill_s):
        values = np.array(surface.value)
        assert (values >= 0.0).all() and (np.diff(values, axis=1) >= 0.0).all()
    assert min(operators.tokens_s.value) >= 0.0 <= operators.overhead_s
    assert operators.sampled_s(0) == 0.0


def test_too_little_is_refused() -> None:
    only = [point for point in measured(Truth(), 0.0) if point.kind is Kind.PREFILL]
    with pytest.raises(ProfileError, match="too little was measured"):
        fit(only)


def test_contexts_within_windows_explain_decodes_of_unlike_lengths() -> None:
    """Of six groups of layers five see 512 tokens. Counted whole, contexts of unlike lengths are
    not told from their mean.
    """
    whole = PlanMaker(LIMITS.block_size, LIMITS.max_slots)
    within = PlanMaker(LIMITS.block_size, LIMITS.max_slots, (0, *(512,) * 5), 600)
    wanted, errors = experiments(LIMITS), []
    for maker in (whole, within):
        points = [
            Point(one.kind, maker.work(one.rows), (Truth().step_s(within.work(one.rows)),) * 4)
            for one in wanted
        ]
        skewed = step_errors(fit(points).operators, points)[Kind.SKEWED]
        errors.append(float(np.mean(np.abs(skewed))))
    assert errors[1] < 0.002 < 0.02 < errors[0]

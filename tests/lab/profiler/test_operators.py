"""Operators measured alone: their curves, and steps as their sums, beside a made-up engine."""

import math
from collections.abc import Iterator

import pytest

from daemon.cost.step_cost import SumOfOperators
from daemon.cost.work import NO_WORK, StepWork
from daemon.lab.profiler.experiments import HELD_OUT
from daemon.lab.profiler.operators import (
    ATTENTION,
    COPIED_BLOCKS,
    COPIES,
    AlonePoint,
    fit_alone,
    operator_steps,
)
from daemon.lab.profiler.points import Point
from daemon.lab.profiler.synthetic import PlanMaker
from tests.lab.profiler.truth import LIMITS, Truth, measured

TRUTH = Truth(tile_share=0.0, chunk_s=0.0)
"""Whose steps have 18 ms beyond the operators of `alone`."""


def alone(truth: Truth, work: StepWork) -> dict[str, float]:
    """Each operator's time in a step."""
    tokens_s = truth.token_s * work.num_tokens
    pairs = work.prompts()[1]
    return {
        "gate_up": 0.6 * tokens_s,
        "down": 0.4 * tokens_s,
        ATTENTION: truth.pair_s * pairs
        + truth.context_s * work.decode_context
        + truth.decode_s * work.num_decodes,
        "head": 0.75 * truth.sample_s * work.num_samples,
        "sampler": 0.25 * truth.sample_s * work.num_samples,
    }


def points(truth: Truth) -> Iterator[AlonePoint]:
    maker = PlanMaker(LIMITS.block_size, LIMITS.max_slots)
    for rows in operator_steps(LIMITS):
        work = maker.work(rows)
        for name, time_s in alone(truth, work).items():
            if time_s:
                yield AlonePoint(name, work, 0, time_s)
    for count in COPIED_BLOCKS:
        yield AlonePoint(COPIES, NO_WORK, count, 1e-5 * count)


def test_sums_of_operators_are_the_steps_that_nobody_fitted() -> None:
    steps = measured(TRUTH, 0.0)
    found = fit_alone(list(points(TRUTH)), steps)
    assert found is not None
    assert found.overhead_s == pytest.approx(TRUTH.fixed_s, rel=0.05)
    assert 0.0 < found.mape < 0.03
    cost = SumOfOperators(found)
    for point in steps:
        if point.kind not in HELD_OUT:
            assert cost.step_s(point.work) == pytest.approx(point.elapsed_s, rel=0.1)
    assert {one.name for one in found.tokens_s} == {"gate_up", "down"}
    assert {one.name for one in found.sampled_s} == {"head", "sampler"}
    assert found.copied_s(32) == pytest.approx(3.2e-4, rel=0.02)


def test_an_operator_keeps_its_own_input_and_time() -> None:
    found = fit_alone(list(points(TRUTH)), [])
    assert found is not None and found.overhead_s == found.mape == 0.0
    work = StepWork(3, 900, ((100, 50),), 4)
    parts = {part.name: part for part in SumOfOperators(found).parts(work)}
    true = alone(TRUTH, work)
    assert parts["down"].size == 103 and parts["head"].size == 4
    assert parts["prefill attention"].size == 100 * 50 + 100 * 100 // 2
    assert parts["decode attention"].size == 900
    for name in ("gate_up", "down", "head", "sampler"):
        assert parts[name].time_s == pytest.approx(true[name], rel=0.02)
    assert sum(part.time_s for part in parts.values()) == pytest.approx(
        SumOfOperators(found).step_s(work)
    )


def test_chunks_are_one_of_the_root_of_their_squares() -> None:
    """Vidur section 4.3; behind others they keep their pairs of tokens."""
    found = fit_alone(list(points(TRUTH)), [])
    assert found is not None
    cost = SumOfOperators(found)
    chunks = ((64, 0), (48, 100), (80, 30))
    together = cost.step_s(StepWork(0, 0, chunks))
    tokens = math.sqrt(64**2 + 48**2 + 80**2)
    before = (48 * 100 + 80 * 30) / tokens
    token_s = TRUTH.token_s * (64 + 48 + 80)
    assert together == pytest.approx(found.prefill_s(tokens, before) + token_s, rel=0.01)
    assert tokens * (tokens + 2 * before) == pytest.approx(
        StepWork(0, 0, chunks).prompts()[1], rel=1e-9
    )


def test_the_first_steps_show_chunks_and_decodes_of_several_sizes() -> None:
    first = operator_steps(LIMITS)[:6]
    assert len({rows[0].count for rows in first if rows[0].count > 1}) == 3
    assert len({len(rows) for rows in first if rows[0].count == 1}) == 3
    assert len(operator_steps(LIMITS)) < 50


@pytest.mark.parametrize("kind", ["nothing", "decodes"])
def test_where_too_little_is_told_apart_there_are_none(kind: str) -> None:
    some = [point for point in points(TRUTH) if kind == "decodes" and not point.work.chunks]
    steps: list[Point] = measured(TRUTH, 0.0)
    assert fit_alone(some, steps) is None

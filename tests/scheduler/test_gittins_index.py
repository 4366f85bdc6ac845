"""The Gittins index on distributions whose answer is known."""

import numpy as np
import pytest

from daemon.scheduler.gittins_index import IndexTable, index_table
from daemon.state.sequence import Outlook


def table_of(lengths: list[float]) -> IndexTable:
    """Of lengths that weigh the same."""
    column = np.sort(np.array(lengths, np.float64))
    return index_table(column, np.full(column.size, 1.0 / column.size))


def at(table: IndexTable, age: float, unit: float) -> Outlook:
    index, span = table.at(age, unit)
    return Outlook(index, span, span)


def index_at(table: IndexTable, age: float) -> float:
    return at(table, age, 1.0).gittins_index


def test_one_length_costs_what_is_left_and_is_worth_one_over_it() -> None:
    """First come first served: whoever began has less left."""
    table = table_of([100.0] * 50)
    for age in (0.0, 30.0, 99.0):
        outlook = at(table, age, 1.0)
        assert outlook.gittins_index == pytest.approx((100.0 - age) * 100.0)
        assert outlook.span_tokens == pytest.approx(100.0 - age)


def test_two_lengths_are_tried_for_the_short_one_first() -> None:
    """Half of 10 and half of 1,000: 10 tokens win 1 / 10 with a chance of a half; then 990 are left
    for 1 / 1,000.
    """
    table = table_of([10.0] * 40 + [1000.0] * 40)
    assert index_at(table, 0.0) == pytest.approx(10.0 / (0.5 / 10.0))
    assert at(table, 0.0, 1.0).span_tokens == pytest.approx(10.0)
    assert index_at(table, 10.1) == pytest.approx(989.9 * 1000.0, rel=1e-3)


def test_heavy_tails_serve_those_that_got_least() -> None:
    """A Pareto distribution: the older, the longer it lasts."""
    quantiles = (np.arange(2000) + 0.5) / 2000
    table = table_of((20.0 * (1.0 - quantiles) ** (-1 / 1.2)).tolist())
    indices = [index_at(table, age) for age in (25.0, 50.0, 100.0, 200.0, 400.0, 5000.0)]
    assert indices == sorted(indices)
    assert indices[-1] > 100 * indices[0]


def test_alike_lengths_let_those_finish_that_began() -> None:
    """A narrow bell: the older, the less is left."""
    chance = np.random.default_rng(0)
    table = table_of((1600.0 * np.exp(0.15 * chance.standard_normal(512))).tolist())
    indices = [index_at(table, age) for age in (0.0, 400.0, 800.0, 1200.0, 1600.0)]
    assert indices == sorted(indices, reverse=True)


def test_an_exponential_says_nothing_of_the_time_left() -> None:
    """Whatever the age, as many tokens are spent on an end; only its worth falls."""
    quantiles = (np.arange(4000) + 0.5) / 4000
    table = table_of((-100.0 * np.log1p(-quantiles)).tolist())
    for age in (10.0, 50.0, 150.0):
        outlook = at(table, age, 1.0)
        ended = 1.0 - np.exp(-outlook.span_tokens / 100.0)
        assert 0.2 < ended < 1.0
        assert outlook.gittins_index / (100.0 * age) < 5.0


def test_lengths_in_predictions_order_by_what_is_left() -> None:
    """Exact predictions: shortest remaining, by what it is worth."""
    table = table_of([1.0] * 64)
    short, long = at(table, 50.0, 100.0), at(table, 50.0, 400.0)
    assert short.gittins_index == pytest.approx(50.0 * 100.0)
    assert long.gittins_index == pytest.approx(350.0 * 400.0)


def test_what_is_older_than_the_sample_lasts_longer_and_longer() -> None:
    table = table_of(list(range(1, 200)))
    first, second = at(table, 400.0, 1.0), at(table, 800.0, 1.0)
    assert second.gittins_index > first.gittins_index > 0.0
    assert second.span_tokens > first.span_tokens >= 50.0


def test_a_few_accidents_are_no_reason_to_go_on() -> None:
    """Three that end together right behind an age say nothing of the thousand that are left."""
    smooth = np.linspace(100.0, 1000.0, 1000).tolist()
    lucky = table_of([*smooth, 50.0, 50.0, 50.0])
    assert index_at(lucky, 0.0) == pytest.approx(index_at(table_of(smooth), 0.0), rel=0.05)

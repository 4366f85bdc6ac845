"""Ageing: cost against arrival, on the scale of the live tail."""

import math

import numpy as np
import pytest

from daemon.scheduler.ageing import TAIL_SHARE, Ageing, quantile
from tests.scheduler.test_mlfq import sequence


def test_what_costs_e_times_as_much_goes_first_if_it_came_a_scale_earlier() -> None:
    ageing = Ageing()
    cheap, dear = sequence(5, 1), sequence(5, 0)
    cheap.arrived_s = 0.9 * ageing.scale_s
    assert ageing.rank(1.0, cheap) < ageing.rank(math.e, dear)
    cheap.arrived_s = 1.1 * ageing.scale_s
    assert ageing.rank(1.0, cheap) > ageing.rank(math.e, dear)


def test_the_order_does_not_depend_on_the_unit_of_cost() -> None:
    ageing, one, other = Ageing(), sequence(5, 0), sequence(5, 1)
    apart_s = ageing.rank(3.0, one) - ageing.rank(7.0, other)
    assert ageing.rank(3000.0, one) - ageing.rank(7000.0, other) == pytest.approx(apart_s)


def test_the_scale_follows_the_tail() -> None:
    """100 s at the 95 % quantile."""
    ageing = Ageing()
    changed = [ageing.observe(100.0 if number % 10 == 0 else 1.0) for number in range(64)]
    assert any(changed)
    assert ageing.scale_s == pytest.approx(100.0 * TAIL_SHARE, rel=0.01)
    assert not any(ageing.observe(100.0 if n % 10 == 0 else 1.0) for n in range(64)), "the same"


def test_a_lead_is_a_ratio_of_costs() -> None:
    ageing, one = Ageing(), sequence(5)
    assert ageing.rank(2.0, one) + ageing.lead_s(1.5) == pytest.approx(ageing.rank(3.0, one))


def test_what_was_learned_can_be_written_down() -> None:
    ageing = Ageing()
    for number in range(40):
        ageing.observe(float(number))
    again = Ageing.restored(ageing.state())
    for number in range(40):
        assert again.observe(3.0 * number) == ageing.observe(3.0 * number)
    assert again.state() == ageing.state()


def test_a_quantile_is_the_one_of_numpy() -> None:
    """To the last bit, so that a journal of before gives the same ranks."""
    chance = np.random.default_rng(0)
    for size in range(1, 257, 5):
        numbers = chance.lognormal(size=size).tolist()
        for share in (0.0, 0.4, 0.95, 1.0):
            assert quantile(sorted(numbers), share) == np.quantile(numbers, share)

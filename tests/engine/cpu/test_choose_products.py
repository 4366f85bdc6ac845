"""Which ways a step's products take: what leaves the program has to be worth it."""

import time
from typing import Any

import pytest

from daemon.engine.cpu.choose_products import choose_products, fastest
from daemon.engine.cpu.product_implementations import ProductWay, key
from daemon.engine.cpu.quantised import QuantisedProduct
from daemon.engine.cpu.team import Team
from tests.engine.quantised.random_blocks import random_weight

CALLED, SLOW_CALLED = ProductWay.FLOATS_TOGETHER, ProductWay.FLOATS_SINGLY
PANEL = ProductWay.BFLOAT16_PANEL
WIDE, NARROW = ("BF16", 512), ("BF16", 1536)
ROWS = {WIDE: 1000, NARROW: 100}
TIMES = {
    WIDE: {SLOW_CALLED: 9.0, CALLED: 2.0, PANEL: 1.5},
    NARROW: {SLOW_CALLED: 8.0, CALLED: 1.0, PANEL: 3.0},
}
SAVED = 500.0
"""By a panel for the wide ones: their rows times what one takes less."""


def test_a_panel_is_taken_where_it_saves_more_than_leaving_the_program_costs() -> None:
    assert fastest(TIMES, ROWS, SAVED - 1.0) == {WIDE: PANEL, NARROW: CALLED}


def test_no_weight_takes_one_where_it_saves_less() -> None:
    assert fastest(TIMES, ROWS, SAVED + 1.0) == {WIDE: CALLED, NARROW: CALLED}


def test_steps_of_no_program_take_the_fastest_of_each() -> None:
    times = {**TIMES, NARROW: {CALLED: 3.0, PANEL: 1.0}}
    assert fastest(times, ROWS, 0.0) == {WIDE: PANEL, NARROW: PANEL}


def test_where_no_panel_is_fastest_nothing_is_weighed() -> None:
    times = {one: {**found, PANEL: 100.0} for one, found in TIMES.items()}
    assert fastest(times, ROWS, 1e9) == {WIDE: CALLED, NARROW: CALLED}


def test_time_that_somebody_else_has_the_core_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, team: Team
) -> None:
    """One way is held up for long, the other computes for a shorter time."""
    weight, multiply = random_weight("Q8_0", 64, 256), QuantisedProduct.__call__

    def held_up(self: QuantisedProduct, *states: Any) -> Any:
        if self._ways.of(weight, 1) is ProductWay.FLOATS_SINGLY:
            time.sleep(0.006)
        else:
            end_s = time.thread_time() + 0.003
            while time.thread_time() < end_s:
                pass
        return multiply(self, *states)

    monkeypatch.setattr(QuantisedProduct, "__call__", held_up)
    ways = choose_products([weight], team, exact=True, in_calls=True)
    assert ways.chosen[key(weight)][0] is ProductWay.FLOATS_SINGLY

"""Which ways a step's products take: what leaves the program has to be worth it."""

from daemon.engine.cpu.choose_ways import fastest
from daemon.engine.cpu.ways import ProductWay

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

"""The reserve follows the history of arrivals."""

import numpy as np

from daemon.memory.reserve import WINDOW_S, BurstReserve


def after(times_s: list[float], blocks: int, now: float) -> int:
    reserve = BurstReserve()
    for time_s in times_s:
        reserve.arrived(time_s, blocks)
    return reserve.num_blocks(now)


def test_nothing_came() -> None:
    assert BurstReserve().num_blocks(100.0) == 0


def test_even_arrivals_reserve_what_a_window_brings() -> None:
    times_s = np.arange(1.0, 301.0, WINDOW_S).tolist()
    assert 9 <= after(times_s, 10, 301.0) <= 13


def test_bursts_reserve_more_than_even_arrivals_of_the_same_rate() -> None:
    even = np.arange(1.0, 301.0, WINDOW_S).tolist()
    bursts = [10 * WINDOW_S * (index // 10) + 1.0 for index in range(len(even))]
    assert after(bursts, 10, 301.0) > 2 * after(even, 10, 301.0)


def test_a_quiet_hour_forgets() -> None:
    assert after(np.arange(1.0, 100.0, 0.1).tolist(), 10, 3700.0) == 0


def test_state_comes_back() -> None:
    reserve = BurstReserve()
    for time_s in (1.0, 1.2, 4.0):
        reserve.arrived(time_s, 7)
    again = BurstReserve.restored(reserve.state())
    again.arrived(5.0, 3)
    reserve.arrived(5.0, 3)
    assert again.num_blocks(9.0) == reserve.num_blocks(9.0)
    assert again.state() == reserve.state()

"""Waits and batches in closed form, against worked examples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.roles.queueing import (
    Waiting,
    below,
    decoding,
    erlang_c,
    waiting,
    waiting_for_room,
)


def test_one_server_with_equal_jobs() -> None:
    """M/D/1: half busy with jobs of 0.1 s, the mean wait is half a job's time."""
    line = waiting(5.0, 0.1, 0.1**2)
    assert line.chance == pytest.approx(0.5)
    assert line.overall_s == pytest.approx(0.5 * 0.1 / (2 * (1 - 0.5)))


def test_one_server_with_memoryless_jobs() -> None:
    """M/M/1: twice that; and the wait of those who wait is exponential."""
    line = waiting(5.0, 0.1, 2 * 0.1**2)
    assert line.overall_s == pytest.approx(0.1)
    assert line.within(0.2) == pytest.approx(1 - 0.5 * math.exp(-1.0))
    assert line.within(-0.01) == 0.0


def test_two_servers_make_one_in_three_wait() -> None:
    """Erlang's C of two servers that are offered one's work."""
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 2.0) == 1.0


def test_more_than_can_be_done_waits_for_ever() -> None:
    assert waiting(11.0, 0.1, 0.01).within(1e9) == 0.0
    assert waiting(5.0, 0.0, 0.0) == Waiting(0.0, 0.0)


def test_a_batch_finds_its_own_size() -> None:
    """Two answers a second of 100 tokens: steps of 20 ms and 1 ms for each who draws come to 25 ms,
    at which five draw.
    """
    decodes = decoding(2.0, 100.0, 0.020, 0.001, 1)
    assert decodes.step_s == pytest.approx(0.025)
    assert decodes.num == pytest.approx(5.0)
    assert decodes.num == pytest.approx(2.0 * 100.0 * decodes.step_s)
    assert decoding(2.0, 100.0, 0.020, 0.005, 1).step_s == math.inf
    assert decoding(4.0, 100.0, 0.020, 0.001, 2).step_s == pytest.approx(0.025)


def test_who_draws_longer_sees_the_mean() -> None:
    decodes = decoding(2.0, 100.0, 0.020, 0.001, 1)
    spans = [decodes.deviation_s(span) for span in (0.0, 1.0, 10.0, 1000.0)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] == pytest.approx(0.001 * math.sqrt(5.0 * 1.25))
    assert spans[-1] < 0.1 * spans[0]


def test_a_step_without_cost_for_rows_does_not_wander() -> None:
    assert decoding(2.0, 100.0, 0.020, 0.0, 1).deviation_s(1.0) == 0.0


@given(st.floats(0.1, 50.0), st.integers(1, 8), st.floats(0.001, 0.2))
def test_more_servers_wait_less(rate: float, servers: int, work_s: float) -> None:
    few = waiting(rate, work_s, 2 * work_s**2, servers)
    many = waiting(rate, work_s, 2 * work_s**2, servers + 1)
    assert many.within(0.1) >= few.within(0.1) - 1e-9


def test_the_normal_share() -> None:
    assert below(1.0, 1.0, 0.5) == pytest.approx(0.5)
    assert below(2.0, 1.0, 0.5) == pytest.approx(0.97725, abs=1e-4)
    assert (below(1.0, 0.9, 0.0), below(0.9, 1.0, 0.0), below(1.0, math.inf, 1.0)) == (1.0, 0.0, 0)


def test_waits_for_room_are_erlang_s_to_a_hundredth() -> None:
    for places, num in ((20, 12.0), (60, 50.0), (200, 190.0), (2000, 1950.0)):
        found = waiting_for_room(places, num, 10.0)
        assert found.chance == pytest.approx(erlang_c(places, num), abs=0.02)
        assert found.mean_s == pytest.approx(10.0 / (places - num))
    assert waiting_for_room(20, 20.0, 10.0).mean_s == math.inf
    assert waiting_for_room(20, 0.0, 10.0) == Waiting(0.0, 0.0)

"""Restarts within a window, by a clock that the test holds."""

from daemon.supervisor.restarts import Restarts


def test_so_many_in_a_window_and_no_more() -> None:
    restarts = Restarts(most=3, window_s=10.0)
    assert [restarts.allow(t) for t in (0.0, 1.0, 2.0, 3.0, 10.0)] == [True] * 3 + [False] * 2


def test_old_ones_are_forgotten_and_refused_ones_never_counted() -> None:
    restarts = Restarts(most=2, window_s=10.0)
    assert restarts.allow(0.0) and restarts.allow(9.0)
    assert not any(restarts.allow(9.5) for _ in range(50))
    assert restarts.allow(10.1)
    assert not restarts.allow(10.2)
    assert restarts.allow(19.1)


def test_a_process_that_dies_now_and_then_lives_for_ever() -> None:
    restarts = Restarts(most=5, window_s=60.0)
    assert all(restarts.allow(13.0 * i) for i in range(100))
    assert not all(restarts.allow(2000.0 + 11.0 * i) for i in range(7))

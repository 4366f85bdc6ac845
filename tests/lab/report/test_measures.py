"""Tokens delivered and means over time, against slow and plain references."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.lab.report.measures import (
    completion_window,
    means_between,
    measure,
    pauses_seen,
    tokens_delivered,
)
from daemon.lab.report.records import Outcome, RequestLog
from tests.lab.report.logs import by_hand

QUARTERS = st.integers(0, 40).map(lambda ticks: ticks / 4)
"""Times whose sums are exact."""

Tokens = tuple[list[float], int]  # times of those that left gaps, how many more came with the last


@st.composite
def _token_times(draw: st.DrawFn) -> Tokens:
    times = sorted(draw(st.lists(QUARTERS, max_size=6)))
    return times, draw(st.integers(0, 2)) if times else 0


def _log(answers: list[Tokens]) -> RequestLog:
    """A log whose gaps are in order of time, those of different requests interleaved."""
    log = RequestLog.empty(len(answers))
    gaps = []
    for row, (times, num_more) in enumerate(answers):
        if times:
            log.first_s[row], log.last_s[row] = times[0], times[-1]
            log.output_tokens[row] = len(times) + num_more
        gaps += [(times[i], row, times[i] - times[i - 1]) for i in range(1, len(times))]
    gaps.sort(key=lambda gap: gap[0])
    log.gap_s = np.array([gap[2] for gap in gaps], np.float32)
    log.gap_request = np.array([gap[1] for gap in gaps], np.int32)
    return log


@given(st.lists(_token_times(), max_size=6), QUARTERS)
def test_tokens_delivered(answers: list[Tokens], cutoff_s: float) -> None:
    expected = [
        sum(time <= cutoff_s for time in times) + (num_more if times[-1:] <= [cutoff_s] else 0)
        for times, num_more in answers
    ]
    assert tokens_delivered(_log(answers), cutoff_s).tolist() == expected


def test_the_longest_gap_of_each_request() -> None:
    log = _log([([0.0, 1.0, 1.5], 0), ([3.0], 4), ([], 0), ([1.0, 1.0, 4.0, 6.0], 0)])
    assert [str(one) for one in measure(log).longest_gap_s.tolist()] == ["1.0", "nan", "nan", "3.0"]


def test_the_second_token_comes_after_the_first_gap_of_each_request() -> None:
    log = _log([([0.0, 1.0, 1.5], 0), ([3.0], 4), ([], 0), ([1.0, 1.5, 4.0, 6.0], 0)])
    order = np.array([2, 0, 3, 1, 4])  # of two requests whose gaps lie between each other
    log.gap_s, log.gap_request = log.gap_s[order], log.gap_request[order]
    assert log.gap_request.tolist() == [3, 0, 3, 0, 3]
    assert [str(one) for one in measure(log).second_token_s.tolist()] == [
        "1.0",
        "nan",
        "nan",
        "0.5",
    ]


@pytest.mark.parametrize(
    ("gaps", "paused_s"),
    [
        ([1.0, 1.0, 1.0, 4.0], 0.0),  # four times as long is no pause yet
        ([1.0, 1.0, 1.0, 5.0], 4.0),
        ([0.001, 0.001, 0.001, 0.1], 0.0),  # nobody sees it
        ([0.25, 0.25, 0.25, 2.0, 3.0], 4.5),
    ],
)
def test_what_a_client_sees_of_pauses(gaps: list[float], paused_s: float) -> None:
    usual = [sorted(gaps)[len(gaps) // 2]] * 9  # of another request, of the same pace
    seconds = np.array([*usual, *gaps], np.float32)
    owners = np.array([2] * len(usual) + [1] * len(gaps), np.int32)
    assert pauses_seen(seconds, owners, 3).tolist() == pytest.approx([0.0, paused_s, 0.0])


def test_without_gaps_nobody_pauses() -> None:
    assert pauses_seen(np.zeros(0, np.float32), np.zeros(0, np.int32), 2).tolist() == [0.0, 0.0]


def test_more_gaps_than_tokens_deliver_no_more_than_there_are() -> None:
    log = _log([([0.0, 1.0, 2.0, 9.0], 0)])
    log.output_tokens[0] = 2
    assert tokens_delivered(log, 5.0).tolist() == [2]


@given(
    st.lists(st.tuples(QUARTERS, st.integers(0, 8)), max_size=6),
    st.lists(st.integers(0, 60).map(lambda ticks: ticks / 4), min_size=2, max_size=5),
)
def test_means_between(samples: list[tuple[float, int]], edges_s: list[float]) -> None:
    samples.sort(key=lambda sample: sample[0])
    edges_s.sort()

    def value_at(time_s: float) -> float:
        return next((value for at_s, value in reversed(samples) if at_s <= time_s), 0)

    expected = []
    for begin_s, end_s in pairwise(edges_s):
        ticks = np.arange(begin_s, end_s, 0.25)
        expected.append(sum(map(value_at, ticks)) / ticks.size if ticks.size else math.nan)
    found = means_between([at for at, _ in samples], [value for _, value in samples], edges_s)
    assert found.tolist() == pytest.approx(expected, nan_ok=True)


@given(st.lists(QUARTERS, max_size=8), QUARTERS)
def test_the_window_of_completions(last_s: list[float], unfinished_s: float) -> None:
    log = RequestLog.empty(len(last_s) + 1)
    log.last_s[:] = [*last_s, unfinished_s]
    log.outcome[:-1] = Outcome.FINISHED
    window = completion_window(log)
    ordered = sorted(last_s)

    def quantile(share: float) -> float:
        rank = share * (len(ordered) - 1)
        below = math.floor(rank)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (rank - below) * (ordered[above] - ordered[below])

    if len(set(last_s)) < 2:
        assert window is None
    elif window is None:
        assert quantile(0.1) == pytest.approx(quantile(0.9))
    else:
        assert window == pytest.approx((quantile(0.1), quantile(0.9)))


def test_each_request_has_the_measures_that_its_end_allows() -> None:
    found = measure(by_hand().requests)
    nan = np.nan
    np.testing.assert_allclose(found.ttft_s, [1, 1, 1, nan, 4])
    np.testing.assert_allclose(found.tpot_s, [2 / 3, nan, 2, nan, nan])
    np.testing.assert_allclose(found.jct_s, [3, 1, 5, nan, nan])
    np.testing.assert_allclose(found.normalized_latency_s, [0.75, 1, 5 / 3, nan, nan])
    np.testing.assert_allclose(found.queueing_s, [0.5, 0, 0.5, nan, 2])

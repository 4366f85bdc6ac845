"""The future peak against a simulation step by step."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.scheduler.future_peak import FuturePeak, PagePeak
from daemon.wire.columns import Int32, int32

sequences = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), max_size=8)


def held(sequences: list[tuple[int, int]], step: int) -> int:
    """Tokens held after so many steps, by those that have not ended before."""
    return sum(known + step for known, left in sequences if left >= step)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(running=sequences, waiting=sequences)
def test_it_is_the_most_of_all_steps(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    known, left = int32([one[0] for one in running]), int32([one[1] for one in running])
    peak = FuturePeak(known, left)
    assert peak.peak == max((held(running, step) for step in range(1, 31)), default=0)
    of_each = peak.with_each(int32([one[0] for one in waiting]), int32([one[1] for one in waiting]))
    expected = [
        max(held([*running, one], step) for step in range(1, one[1] + 1)) for one in waiting
    ]
    assert of_each.tolist() == expected
    at_ends = [int(known.sum() + left.sum()) + sum(one) for one in waiting]
    assert all(of_each <= at_ends), "packed answers are let in by their ends where these fit"
    ends = [one[1] for one in running]
    distance = peak.distance(int32([one[1] for one in waiting])).tolist()
    if running:
        assert distance == [min(abs(end - one[1]) for end in ends) for one in waiting]
        assert peak.num_steps == max(ends)
    else:
        assert peak.num_steps == 0 and all(one > 1 << 31 for one in distance)


def test_a_borrower_ends_before_its_lender_needs_the_room() -> None:
    """One of 10 tokens grows to 40; beside it 15 more fit for 10 steps, and not for 20."""
    lender = FuturePeak(int32([10]), int32([30]))
    fits = lender.fits(int32([5, 5]), int32([10, 20]), 40)
    assert fits.tolist() == [True, False]
    assert FuturePeak(int32([]), int32([])).fits(int32([3]), int32([4]), 7).all()


def in_pages(num_tokens: Int32) -> Int32:
    """Pages of four tokens: of a layer that sees all, and of one with a window."""
    blocks = -(-num_tokens // 4)
    return blocks + np.minimum(blocks, 3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(running=sequences, waiting=sequences)
def test_pages_behind_a_window_are_not_counted(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    def held(all_of: list[tuple[int, int]], step: int) -> int:
        return sum(int(in_pages(int32([n + step]))[0]) for n, left in all_of if left >= step)

    known, left = int32([one[0] for one in running]), int32([one[1] for one in running])
    peak = PagePeak(known, left, in_pages)
    assert peak.peak == max((held(running, step) for step in range(1, 31)), default=0)
    of_each = peak.with_each(int32([one[0] for one in waiting]), int32([one[1] for one in waiting]))
    assert of_each.tolist() == [
        max(held([*running, one], step) for step in range(1, one[1] + 1)) for one in waiting
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(running=sequences, waiting=sequences, room=st.integers(1, 400))
def test_pages_of_one_token_are_tokens(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]], room: int
) -> None:
    known, left = int32([one[0] for one in running]), int32([one[1] for one in running])
    pages, tokens = PagePeak(known, left, lambda tokens: tokens), FuturePeak(known, left)
    assert (pages.peak, pages.num_steps) == (tokens.peak, tokens.num_steps)
    for one in waiting:
        assert pages.wait(*one, room) == tokens.wait(*one, room)
        newcomer = int32([one[0]]), int32([one[1]])
        assert pages.fits(*newcomer, room) == tokens.fits(*newcomer, room)

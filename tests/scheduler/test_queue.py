"""The waiting queue gives back exactly the one that was asked for, or says that it is not there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.scheduler.queue import WaitingQueue
from daemon.state.sequence import Sequence

NAN = float("nan")
RANKS = st.sampled_from([0.0, 1.0, 1.0, 2.0, float("inf"), NAN])


def waiting(number: int, rank: float, arrival: int | None = None) -> Sequence:
    arrival = number if arrival is None else arrival
    return Sequence(number, 4 + number, 8, 0, 0.0, arrival, rank=rank)


def filled(*ranks: float) -> tuple[WaitingQueue, list[Sequence]]:
    queue, ones = WaitingQueue(), [waiting(number, rank) for number, rank in enumerate(ranks)]
    for one in ones:
        queue.push(one)
    return queue, ones


def test_one_whose_rank_changed_meanwhile_is_found() -> None:
    queue, (first, second, third) = filled(1.0, 2.0, 3.0)
    first.rank = 9.0
    queue.remove(first)
    assert list(queue) == [second, third]
    third.rank = 2.0
    queue.remove(third)
    assert list(queue) == [second] and queue.num_tokens == second.num_known_tokens


def test_of_equal_places_the_one_that_was_asked_for_goes() -> None:
    queue = WaitingQueue()
    ones = [waiting(number, 1.0, arrival=7) for number in range(3)]
    for one in ones:
        queue.push(one)
    queue.remove(ones[1])
    assert list(queue) in ([ones[0], ones[2]], [ones[2], ones[0]])


def test_a_rank_that_is_no_number_comes_last_and_is_found() -> None:
    queue, ones = filled(NAN, 1.0, NAN, float("inf"), 0.0)
    assert [one.id for one in queue][:2] == [4, 1]
    for one in ones:
        queue.remove(one)
    assert not len(queue) and queue.num_tokens == 0


def test_one_that_is_not_there_is_an_error_and_nobody_else_goes() -> None:
    queue, (first, second) = filled(1.0, 2.0)
    for stranger in (waiting(8, 1.0, arrival=0), waiting(9, 5.0), waiting(10, NAN)):
        with pytest.raises(LookupError, match="does not wait here"):
            queue.remove(stranger)
    assert list(queue) == [first, second]
    queue.remove(first)
    with pytest.raises(LookupError):
        queue.remove(first)
    with pytest.raises(ValueError, match="waits here already"):
        queue.push(second)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("prc"), st.integers(0, 30), RANKS), max_size=30))
def test_any_order_of_events_against_a_plain_list(events: list[tuple[str, int, float]]) -> None:
    queue, pushed, number = WaitingQueue(), [], 0
    for kind, index, rank in events:
        if kind == "p" or not pushed:
            one = waiting(number, rank)
            queue.push(one)
            pushed.append((float("inf") if rank != rank else rank, number, one))
            number += 1
        elif kind == "r":
            queue.remove(pushed.pop(index % len(pushed))[2])
        else:
            pushed[index % len(pushed)][2].rank = rank  # behind the queue's back
        expected = [one for _, _, one in sorted(pushed, key=lambda entry: entry[:2])]
        assert list(queue) == expected
        assert queue.num_tokens == sum(one.num_known_tokens for one in expected)
    for _, _, one in pushed:
        queue.remove(one)
    assert list(queue) == [] and len(queue) == queue.num_tokens == 0


def test_kept_keys_and_values_are_nothing_to_compute_until_they_are_lost() -> None:
    queue, (first, second) = filled(1.0, 2.0)
    third = waiting(3, 0.5)
    third.residence.parked_tokens = third.num_known_tokens - 1
    queue.push(third)
    others = first.num_known_tokens + second.num_known_tokens
    assert queue.num_uncomputed_tokens == others + 1
    third.residence.parked_tokens = 0
    assert queue.num_uncomputed_tokens == queue.num_tokens
    queue.remove(third)
    assert queue.num_uncomputed_tokens == others

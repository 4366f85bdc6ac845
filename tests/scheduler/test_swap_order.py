"""The order of the slots is the order of ENST and EWT, so that the last in it may leave first.

FastServe section 4.2: T_execute(i) = 1/B * sum over j of higher priority of the quanta that j uses
up until it stands where i does. ALISE eq. 6: EWT(J) = sum over those before J of their predicted
time.
"""

from hypothesis import given
from hypothesis import strategies as st

from daemon.scheduler.policies.speculative import AGING, Speculative
from daemon.sequence import Sequence
from tests.scheduler.test_mlfq import learned_pace, sequence

BATCH = 4


def execute_s(levels: list[int], index: int, quantum_s: float) -> float:
    """FastServe's T_execute of a job among others at these levels (0 first, quanta doubling)."""
    own = levels[index]
    before = (sum(2.0**k for k in range(level, own)) for level in levels if level < own)
    return quantum_s * sum(before) / BATCH


def waits_s(remaining_s: list[float], order: list[int]) -> list[float]:
    """ALISE's EWT of each job, by its place in an order."""
    waits = [0.0] * len(order)
    total_s = 0.0
    for index in order:
        waits[index] = total_s
        total_s += remaining_s[index]
    return waits


def test_a_worked_example_of_enst() -> None:
    """Levels 0, 0, 1, 3 with quanta 1, 2, 4: the last waits for 7 + 7 + 6 over 4 lanes."""
    levels = [0, 0, 1, 3]
    assert [execute_s(levels, index, 1.0) for index in range(4)] == [0.0, 0.0, 0.5, 5.0]


def test_a_worked_example_of_ewt() -> None:
    """Jobs of 3, 1 and 2 s run as 1, 2, 3: they wait 0, 1 and 3 s."""
    assert waits_s([3.0, 1.0, 2.0], [1, 2, 0]) == [3.0, 0.0, 1.0]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20))
def test_a_level_further_down_waits_longer(levels: list[int]) -> None:
    order = sorted(range(len(levels)), key=lambda index: (levels[index], index))
    waits = [execute_s(levels, index, 0.01) for index in order]
    assert waits == sorted(waits)


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 100)), min_size=2, max_size=20))
def test_a_rank_further_down_waits_longer(jobs: list[tuple[int, int]]) -> None:
    """Whatever is predicted and however old: the ranks' order makes EWT grow along it."""
    policy, pace = Speculative(), learned_pace()
    made: list[Sequence] = []
    for index, (num_tokens, arrived_s) in enumerate(jobs):
        one = sequence(5, index)
        one.expected_tokens, one.arrived_s = num_tokens, float(arrived_s)
        one.rank = policy.rank(one, pace)
        made.append(one)
    order = sorted(range(len(made)), key=lambda index: made[index].place)
    left_s = [one.rank - AGING * one.arrived_s for one in made]
    waits = waits_s(left_s, order)
    assert [waits[index] for index in order] == sorted(waits)

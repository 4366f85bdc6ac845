"""The order of the slots is the order of ENST and EWT, so that the last in it may leave first.

FastServe section 4.2: T_execute(i) = 1/B * sum over j of higher priority of the quanta that j uses
up until it stands where i does. ALISE eq. 6: EWT(J) = sum over those before J of their predicted
time. Both are computed here from the papers' formulas, and held against where the sequences stand.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.cost.step_time import StepTimeModel
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.mlfq import Mlfq, quantum_s
from daemon.scheduler.policies.remaining import remaining_s
from daemon.scheduler.policies.speculative import AGING, Speculative
from daemon.scheduler.slots import SlotTable
from daemon.state.request import State
from daemon.state.sequence import Sequence
from tests.core.driver import Driver, configured
from tests.scheduler.test_mlfq import learned_step_time, sequence

BATCH = 4


def execute_s(levels: list[int], index: int, step_time: StepTimeModel) -> float:
    """FastServe's T_execute of a job among others at these levels."""
    own = levels[index]
    before = (
        sum(quantum_s(k, step_time) for k in range(level, own)) for level in levels if level < own
    )
    return sum(before) / BATCH


def seated(policy: Policy, members: list[Sequence], step_time: StepTimeModel) -> list[Sequence]:
    """These, in the order of their slots."""
    slots = SlotTable(len(members))
    for one in members:
        one.rank = policy.rank(one, step_time)
        slots.join(one, 0)
    return [slots.member(slot) for slot in slots.order().tolist()]


def test_a_worked_example_of_enst() -> None:
    """Levels 0, 0, 1, 3 with quanta of 10, 20, 40 ms: the last waits for 70 + 70 + 60 ms over 4."""
    step_time = StepTimeModel(0.01)
    found = [execute_s([0, 0, 1, 3], index, step_time) for index in range(4)]
    assert [round(one, 6) for one in found] == [0.0, 0.0, 0.005, 0.05]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=20))
def test_slots_stand_in_the_order_of_enst(levels: list[int]) -> None:
    step_time = learned_step_time()
    members = [sequence(5, index) for index in range(len(levels))]
    for one, level in zip(members, levels, strict=True):
        one.level = level
    order = seated(Mlfq(), members, step_time)
    waits = [execute_s(levels, one.arrival, step_time) for one in order]
    assert waits == sorted(waits)


def test_one_that_was_promoted_stands_before_all() -> None:
    """ENST is the smaller of T_promote and T_execute: once it is promoted it waits for nobody."""
    members = [sequence(5, index) for index in range(3)]
    members[2].level, members[2].promoted = 9, True
    assert seated(Mlfq(), members, learned_step_time())[0] is members[2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 100)), min_size=2, max_size=20))
def test_slots_stand_in_the_order_of_ewt(jobs: list[tuple[int, int]]) -> None:
    """Of one age, whoever has less to do goes first: then EWT, the sum over those before, is the
    smallest that it can be for each place. Age counts as so much less to do.
    """
    policy, step_time = Speculative(), learned_step_time()
    members = []
    for index, (num_tokens, arrived_s) in enumerate(jobs):
        one = sequence(5, index)
        one.expected_tokens, one.arrived_s = num_tokens, float(arrived_s)
        members.append(one)
    same_age = [one for one in members if one.arrived_s == members[0].arrived_s]
    left_s = [remaining_s(one, step_time) for one in seated(policy, same_age, step_time)]
    assert left_s == sorted(left_s)


def test_age_is_a_head_start() -> None:
    policy, step_time = Speculative(), learned_step_time()
    young, old = sequence(5, 1), sequence(5, 0)
    young.expected_tokens, old.expected_tokens = 100, 110
    young.arrived_s = 2.0 / AGING
    assert seated(policy, [young, old], step_time)[0] is old
    young.arrived_s = 0.0
    assert seated(policy, [young, old], step_time)[0] is young


def test_the_last_in_the_order_is_copied_ahead_and_leaves_first() -> None:
    """Three levels in a full pool: whoever stands last is in the host first, and gives way."""
    config = configured("mlfq", max_running=3, max_len=128, prefix_cache=False)
    driver = Driver(config, 24, num_host_blocks=100)
    for length in (40, 24, 12):
        driver.arrive([length] * length, 60)
    left: list[int] = []
    while not left:
        standing = [
            driver.core.instances[0].scheduler.slots.member(slot)
            for slot in driver.core.instances[0].scheduler.slots.order().tolist()
        ]
        driver.answer()
        driver.copied()
        left = [one.id for one in standing if one.state is State.PREEMPTED]
    assert left == [standing[-1].id]
    assert driver.core.sequences[left[0]].residence.parked_tokens > 0
    driver.settle()
    driver.check_nothing_left()

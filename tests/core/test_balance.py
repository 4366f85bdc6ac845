"""What waits goes where there is room, once, and nobody is moved for nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.core import Core
from daemon.core.values.events import Tick
from daemon.core.view.view import story
from daemon.placement.balance import Balancer
from daemon.scheduler.policies import POLICIES
from daemon.state.request import State, sequence_id
from daemon.state.sequence import Sequence
from daemon.state.story import What
from tests.core.driver import Driver, configured
from tests.core.laws import check_nobody_idles
from tests.soak import tries


def moved(sequence: Sequence) -> int:
    return sum(what == What.MOVED for _, what, _, _ in sequence.story.marks)


def homes(driver: Driver) -> list[tuple[int, int]]:
    """(running, waiting) of each instance."""
    return [
        (one.scheduler.num_running, len(one.scheduler.waiting)) for one in driver.core.instances
    ]


def restarted(policy: str = "sarathi", **changes: object) -> Driver:
    """Twenty requests, all on one of two instances, since the other's worker was dead."""
    config = configured(policy, instances=2, max_running=3, **changes)
    driver = Driver(config, 64)
    driver.lose(1)
    for number in range(20):
        driver.arrive([number] * 9, 8)
    driver.answer(0)
    assert sum(waiting for _, waiting in homes(driver)) >= 17
    return driver


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_after_a_restart_both_have_work(policy: str) -> None:
    driver = restarted(policy)
    driver.ready(1, 64)
    assert driver.core.instances[1].scheduler.num_running > 0
    seen = set()
    while driver.alive:
        driver.answer(0)
        driver.answer(1)
        seen.update(one.instance for one in driver.core.sequences.values())
    assert seen == {0, 1}
    driver.check_nothing_left()


@pytest.mark.parametrize("roles", ["mixed", "auto"])
def test_one_serves_while_the_other_still_loads_which_then_takes_its_share(roles: str) -> None:
    config = configured("gittins", instances=2, max_running=8, roles=roles)
    driver = Driver(config)
    driver.ready(0, 64)
    for number in range(24):
        driver.arrive([number] * 9, 8)
    for _ in range(4):
        driver.answer(0)
    before = homes(driver)
    assert before[0][0] == 8 and before[0][1] > 0 and before[1] == (0, 0)
    driver.ready(1, 64)
    assert homes(driver)[1][0] >= 3, "its first step is full at once"
    driver.answer(1)
    assert sum(homes(driver)[1]) >= 7, "and its next one"
    driver.settle()
    assert all(moved(one) <= 1 for one in driver.core.ended)
    driver.check_nothing_left()


def test_each_takes_as_much_as_it_can_seat_and_no_more() -> None:
    driver = restarted()
    driver.ready(1, 64)
    assert homes(driver) == [(3, 14), (3, 0)]
    while driver.core.num_waiting:
        driver.answer(0)
        driver.answer(1)
        assert len(driver.core.instances[1].scheduler.waiting) == 0
    driver.settle()
    assert all(moved(one) <= 1 for one in driver.core.ended)


def test_it_is_told_in_the_story_and_waits_since_it_came() -> None:
    driver = restarted()
    driver.now += 1.0
    driver.ready(1, 64)
    one = next(s for s in driver.core.sequences.values() if s.instance == 1)
    marks = story(driver.core, one.id, driver.now).marks
    assert [mark.what for mark in marks][:5] == ["arrived", "queued", "moved", "queued", "admitted"]
    assert (marks[2].amount, marks[3].amount) == (0, 1)
    assert one.waiting_since_s == 0.0


def test_when_one_runs_dry_it_takes_from_the_other() -> None:
    driver = Driver(configured(instances=2, max_running=1), 64)
    ones = [
        sequence_id(driver.arrive([number] * 9, 3 if number % 2 else 60), 0) for number in range(6)
    ]
    while driver.core.num_waiting:
        driver.answer(0)
        driver.answer(1)
        driver.tick()
    assert driver.core.sequences or ones
    long = [one for one in ones if one in driver.alive]
    assert len({driver.core.sequences[one].instance for one in long}) == len(long)


def test_kv_in_the_host_stays_with_its_instance() -> None:
    config = configured("priority", instances=2, swap="reactive", max_running=2)
    driver = Driver(config, 24, num_host_blocks=64, copy_block_s=1e-9, token_s=1.0)
    driver.lose(1)
    humble = sequence_id(driver.arrive([1] * 60, 12, priority=5), 0)
    for _ in range(5):
        driver.answer()
    driver.arrive([2] * 60, 12, priority=-5)
    driver.answer()
    parked = driver.core.sequences[humble]
    assert parked.state is State.PREEMPTED and parked.residence.parked_tokens > 0
    driver.ready(1, 24)
    assert parked.instance == 0 and not moved(parked)
    driver.settle()
    driver.check_nothing_left()


def test_streams_stay_with_the_prompt_they_share_while_there_is_room() -> None:
    driver = Driver(configured(instances=2), 64)
    driver.arrive(list(range(12)), 20, n=4)
    driver.answer(0)
    driver.answer(0)
    assert {one.instance for one in driver.core.sequences.values()} == {0}
    held_back = Driver(configured(instances=2, max_running=1), 64)
    held_back.arrive([1] * 9, 30)
    held_back.lose(1)
    held_back.arrive(list(range(12)), 20, n=4)
    held_back.ready(1, 64)
    leader = held_back.core.sequences[sequence_id(1, 0)]
    assert leader.instance == 1 and len(held_back.core.held_back.by_leader[leader.id]) == 3
    held_back.answer(1)
    streams = [held_back.core.sequences[sequence_id(1, index)] for index in range(1, 4)]
    assert {one.instance for one in streams} == {1}
    held_back.settle()
    held_back.check_nothing_left()


def test_a_suspect_is_tried_where_it_is_and_the_others_go() -> None:
    driver = Driver(configured(instances=2), 64)
    driver.lose(1)
    for number in range(4):
        driver.arrive([number] * 9, 20)
    driver.answer(0)
    driver.lose(0, blamed=True)
    driver.ready(0, 64)
    fresh = sequence_id(driver.arrive([9] * 9, 20), 0)
    assert driver.core.sequences[fresh].state is State.WAITING
    driver.ready(1, 64)
    assert driver.core.sequences[fresh].instance == 1
    assert len(driver.core.instances[0].scheduler.suspects) == 4
    driver.settle()
    driver.check_nothing_left()


def test_one_too_long_for_the_other_stays() -> None:
    driver = Driver(configured(instances=2, max_running=1), 32)
    driver.lose(1)
    long = [sequence_id(driver.arrive([number] * 40, 60), 0) for number in range(3)]
    short = sequence_id(driver.arrive([7] * 9, 4), 0)
    driver.ready(1, 8)
    assert driver.core.sequences[short].instance == 1
    assert {driver.core.sequences[one].instance for one in long} == {0}


def test_prompts_whose_tokens_cost_more_fill_a_step_sooner() -> None:
    """Of two that would fit by their length, one has to wait: so it goes where there is room."""
    driver = Driver(configured(instances=2, prefix_cache=False), 64)
    driver.lose(1)
    driver.arrive([1] * 40, 8)
    for number in range(2):
        driver.arrive([2 + number] * 12, 8, prompt_cost=2)
    assert homes(driver) == [(1, 2), (0, 0)]
    driver.ready(1, 64)
    assert homes(driver) == [(1, 1), (1, 0)]


events = st.lists(
    st.tuples(st.sampled_from("aaarrrruuulb"), st.integers(0, 2), st.integers(1, 40)),
    min_size=5,
    max_size=30,
)


class Watched(Driver):
    """After every event: nobody idles, nothing more moves, and what moved is better off."""

    num_moves = 0

    def check_it_rests(self, depth: int) -> None:
        """While nothing changes, nobody moves twice; and soon, as plans are full, nobody moves."""
        before = self.moves()
        for _ in range(depth + 1):
            self.handle(Tick(self.now))
        at_rest = self.moves()
        self.handle(Tick(self.now))
        assert self.moves() == at_rest
        assert all(at_rest[one] <= before[one] + 1 for one in before)

    def moves(self) -> dict[int, int]:
        return {number: moved(one) for number, one in self.core.sequences.items()}

    def check(self) -> None:
        super().check()
        check_nobody_idles(self.core)
        newest = self.events[-1]
        movers = [
            one
            for one in self.core.sequences.values()
            if any(what == What.MOVED and at == newest.now for at, what, _, _ in one.story.marks)
        ]
        if not movers or len(self.events) > 80:  # each is compared with a life of its own
            return
        other = Core(self.config)
        for event in self.events[:-1]:
            other.handle(event)
        before = {one.id: moved(one) for one in other.sequences.values()}
        movers = [one for one in movers if moved(one) > before.get(one.id, 0)]
        Watched.num_moves += len(movers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Balancer, "balance", lambda self, touched, now: set())
            other.handle(newest)
        for one in movers:
            assert moved(one) == before.get(one.id, 0) + 1, "moved twice at once"
            stayed = other.sequences[one.id]
            assert stayed.state is not State.RUNNING, "it would have run where it was"
            home = self.core.instances[one.instance]
            assert one.state is State.RUNNING or home.scheduler.in_flight, "it waits for its turn"


@settings(max_examples=tries(12, 200), deadline=None, derandomize=True)
@given(
    events,
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(12, 40),
    st.integers(8, 40),
)
def test_any_life_of_three_instances(
    events: list[tuple[str, int, int]],
    policy: str,
    depth: int,
    max_running: int,
    num_blocks: int,
    budget: int,
) -> None:
    config = configured(
        policy, 3, depth=depth, max_running=max_running, max_batch_tokens=budget,
        prefill_chunk=min(budget, 16), max_len=48,
    )  # fmt: skip
    driver = Watched(config, num_blocks)
    driver.lose(0)
    driver.lose(1)
    for number in range(7):
        driver.arrive([number] * (3 * number + 1), 1 + 2 * number)
    for kind, instance, number in events:
        driver.now += 1e-5
        if kind == "a":
            driver.arrive(
                [number % 3] * min(number, 30),
                1 + number % 13,
                1 + number % 2,
                prompt_cost=(1, 2, 50)[number % 3],
            )
        elif kind == "r":
            driver.answer(instance)
        elif kind == "l" and len(driver.workers) > 1:
            driver.lose(instance)
        elif kind == "u" and instance not in driver.workers:
            driver.ready(instance, num_blocks)
        elif kind == "b" and driver.requests:
            driver.abort(number % driver.requests)
        driver.check_it_rests(depth)
    driver.settle()
    for one in driver.core.ended:
        places = [
            mark
            for mark in one.story.marks
            if mark[1] in (What.MOVED, What.WORKER_LOST, *ADMITTED, *LEFT)
        ]
        for this, following in pairwise(places):
            assert (this[1], following[1]) != (What.MOVED, What.MOVED) or following[0] > this[0]


ADMITTED = (What.ADMITTED, What.SHARED, What.FETCHED)
LEFT = (What.GAVE_WAY, What.OUT_OF_BLOCKS)

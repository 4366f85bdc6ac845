"""What each placement answers, on candidates made by hand."""

from collections.abc import Sequence as Listing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.placement import PLACEMENTS
from daemon.placement.aladdin import BestFit, capacity_norm
from daemon.placement.base import Newcomer
from daemon.placement.deferred import Deferred
from daemon.placement.distserve import NearSaturation
from daemon.placement.jsq import ShortestQueue
from daemon.placement.least_loaded import LeastLoaded
from daemon.placement.power_of_two import PowerOfTwo
from daemon.placement.round_robin import RoundRobin
from daemon.scheduler.future_peak import FuturePeak
from daemon.state.request import sequence_id
from daemon.state.role import Role
from daemon.wire.columns import int32
from tests.placement.made import Made, model, newcomer


def placed(name: str, requests: Listing[tuple[int, int]], capacity: int) -> list[list[int]]:
    """Requests (prompt, answer) that come one after the other, before anything runs: which of them
    each of two instances has.
    """
    placement = PLACEMENTS[name]()
    homes = [Made(0, capacity_tokens=capacity), Made(1, capacity_tokens=capacity)]
    found: list[list[int]] = [[], []]
    for number, (prompt, answer) in enumerate(requests):
        chosen = placement.choose(newcomer(prompt, answer, slo_ttft_s=99.0), homes, number)
        homes[chosen].waiting.append((prompt, answer))
        found[chosen].append(number)
    return found


def peak(requests: Listing[tuple[int, int]]) -> int:
    known, left = zip(*requests, strict=True)
    return FuturePeak(int32(known), int32(left)).peak


def test_two_workers_of_nine_tokens_hold_two_long_prompts_and_two_long_answers() -> None:
    """Aladdin's Figure 3: the shortest queue lets both overflow; in best fit both hold 7."""
    requests = [(4, 1), (1, 4), (4, 1), (1, 4)]
    badly, well = placed("jsq", requests, 9), placed("aladdin", requests, 9)
    assert badly == [[0, 2], [1, 3]]
    assert [peak([requests[one] for one in home]) for home in badly] == [10, 10]
    assert well == [[0, 1], [2, 3]]
    assert [peak([requests[one] for one in home]) for home in well] == [7, 7]


def test_round_robin_goes_on_from_request_to_request_whatever_instances_hold() -> None:
    homes = [Made(4, running=[(900, 5, 1)]), Made(2), Made(3, waiting=[(9, 1)])]
    turns = [
        newcomer()._replace(sequence=sequence_id(request, index))
        for request, index in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2))
    ]
    assert [RoundRobin().choose(turn, homes, 0) for turn in turns] == [2, 3, 4, 2, 3, 4]


def test_deferred_sequences_wait_in_one_queue() -> None:
    choose, request = Deferred().choose, newcomer(10, 40)
    full = [Made(index, running=[(80, 9, 1)], capacity_tokens=100) for index in range(3)]
    assert choose(request, full, 0) == 0, "where none has room, at the first"
    free = Made(3, capacity_tokens=100)
    assert choose(request, [*full, free], 0) == 3
    full[0].waiting.append((10, 5))
    assert choose(request, [*full, free], 0) == 0, "behind those that wait"


def test_the_least_loaded_has_few_tokens_waiting_then_free_memory_then_few_sequences() -> None:
    busy = Made(0, waiting=[(9, 1)])
    full, free = Made(1, running=[(900, 5, 1)]), Made(2, running=[(300, 5, 1), (300, 5, 1)])
    choose = LeastLoaded().choose
    assert choose(newcomer(), [busy, full], 0) == 1
    assert choose(newcomer(), [busy, full, free], 0) == 2
    assert choose(newcomer(), [free, Made(3, running=[(600, 5, 1)])], 0) == 3
    assert choose(newcomer(), [Made(5), Made(4)], 0) == 4


def test_a_queue_is_as_long_as_what_is_to_come_of_prompts_and_answers() -> None:
    many_short = Made(0, running=[(500, 2, 5)] * 4)  # 8 tokens to come
    one_long = Made(1, running=[(20, 90, 1)])
    prompt = Made(2, waiting=[(50, 10)])
    choose = ShortestQueue().choose
    assert choose(newcomer(), [many_short, one_long, prompt], 0) == 0
    assert choose(newcomer(), [one_long, prompt], 0) == 2
    ahead = Made(3, role=Role.PREFILL, running=[(20, 900, 0)], left_of_prompts=20)
    assert choose(newcomer(), [ahead, Made(4, role=Role.PREFILL, waiting=[(30, 1)])], 0) == 3


def test_of_two_that_are_drawn_the_one_with_fewer_heavy_answers_takes_it() -> None:
    heavy = [Made(i, running=[(10, 500, 1)] * 3) for i in range(2)]
    light = Made(2, running=[(10, 50, 1)] * 3)
    choose = PowerOfTwo().choose
    assert choose(newcomer(), [heavy[0], light], 7) == 2
    drawn = {choose(newcomer(), [*heavy, light], seed) for seed in range(64)}
    assert drawn == {0, 2}, "the heavy ones may be drawn, and of those the first is chosen"
    share = [choose(newcomer(), [*heavy, light], seed) for seed in range(600)].count(2)
    assert 350 < share < 450, "of three pairs, two have the light one"


def test_it_draws_only_among_those_with_room_for_the_whole_length() -> None:
    full = [Made(i, capacity_tokens=1000, running=[(850, 10, 5)]) for i in range(3)]
    room = Made(3, capacity_tokens=1000, running=[(700, 400, 5)] * 1)
    choose = PowerOfTwo().choose
    assert {choose(newcomer(100, 100), [*full, room], seed) for seed in range(32)} == {3}
    assert len({choose(newcomer(100, 100), full, seed) for seed in range(32)}) > 1


def test_prompts_are_batched_near_what_fills_the_device() -> None:
    """10 ms a step and 0.1 ms a token: 100 tokens keep it busy."""
    homes = [Made(0), Made(1, waiting=[(40, 9)]), Made(2, waiting=[(60, 9)])]
    choose = NearSaturation().choose
    assert choose(newcomer(30), homes, 0) == 2
    assert choose(newcomer(50), homes, 0) == 1
    assert choose(newcomer(70), homes, 0) == 0
    assert choose(newcomer(500), homes, 0) == 0, "beyond everywhere: the shortest queue"
    assert model().saturating_tokens(512) == 100
    assert model().saturating_tokens(64) == 64


def test_what_brings_its_kv_goes_where_the_least_memory_is_taken() -> None:
    full, waits = Made(0, running=[(900, 9, 5)]), Made(1, waiting=[(800, 9)])
    choose = NearSaturation().choose
    assert choose(newcomer(brings_kv=True), [full, waits], 0) == 1
    small = Made(2, capacity_tokens=1000, running=[(100, 9, 5)])
    assert choose(newcomer(brings_kv=True), [full, waits, small], 0) == 1


SLOW = model(base_s=0.02, row_s=0.01, context_s=1e-6, token_s=1e-3)
"""A step of eight decodes takes the promised tenth of a second."""


def test_best_fit_takes_the_fullest_that_keeps_every_promise() -> None:
    running = [(50, 50, 50)]
    homes = [Made(i, running=running * count, step_time=SLOW) for i, count in enumerate((1, 3, 9))]
    assert capacity_norm(homes[1]) > capacity_norm(homes[0])
    choose = BestFit().choose
    assert choose(newcomer(10, 50), homes, 0) == 1, "b: the third would be slower than promised"
    assert choose(newcomer(2500, 50), homes, 0) != 1, "c: no first token in time, anywhere"
    late = [Made(i, running=running, step_time=SLOW, since_s=4.9) for i in range(2)]
    late[1].since_s = 1.0
    late[0].running = running * 2
    assert choose(newcomer(100, 50), late, 0) == 1, "d: the first has saved a tenth of a second"


def test_where_nothing_fits_the_least_loaded_takes_it() -> None:
    homes = [Made(i, capacity_tokens=300, running=[(200, 90, 5)] * 1) for i in range(3)]
    homes[1].running = [(150, 90, 5)]
    assert BestFit().choose(newcomer(150, 100), homes, 0) == 1


def test_cached_tokens_count_as_done() -> None:
    homes = [Made(0, waiting=[(100, 9)]), Made(1, waiting=[(100, 9)], cached=900)]
    assert NearSaturation().choose(newcomer(1000, 20), homes, 0) == 1


candidates = st.builds(
    Made,
    instance=st.just(0),
    running=st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 300), st.integers(0, 200)).map(
            lambda one: (one[0] + one[2], one[1], one[2])
        ),
        max_size=4,
    ),
    waiting=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 300)), max_size=3),
    role=st.sampled_from(list(Role)),
    capacity_tokens=st.sampled_from([0, 500, 2000, 50_000]),
    max_running=st.integers(1, 16),
    step_time=st.sampled_from([model(), SLOW, model(0.0, 0.0, 0.0, 0.0)]),
    since_s=st.floats(0.0, 30.0),
    cached=st.sampled_from([0, 0, 16, 400]),
)
several = st.lists(candidates, min_size=2, max_size=6)
newcomers = st.builds(
    newcomer,
    st.integers(1, 900),
    st.integers(1, 900),
    brings_kv=st.booleans(),
    now=st.floats(0.0, 5.0),
    num_outputs=st.just(0),
)


def numbered(homes: list[Made]) -> list[Made]:
    for index, home in enumerate(homes):
        home.instance = 3 * index + 1
    return homes


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
@settings(max_examples=25, deadline=None, derandomize=True)
@given(homes=several, request_=newcomers, seed=st.integers(0, 1 << 40), data=st.data())
def test_the_choice_is_a_candidate_and_their_order_does_not_matter(
    name: str, homes: list[Made], request_: Newcomer, seed: int, data: st.DataObject
) -> None:
    numbered(homes)
    placement = PLACEMENTS[name]()
    chosen = placement.choose(request_, homes, seed)
    assert chosen in {one.instance for one in homes}
    shuffled = data.draw(st.permutations(homes))
    assert PLACEMENTS[name]().choose(request_, shuffled, seed) == chosen


@pytest.mark.parametrize("name", ["power_of_two", "distserve", "aladdin"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(homes=several, request_=newcomers, seed=st.integers(0, 1 << 40))
def test_who_can_never_hold_it_is_not_chosen_while_another_can(
    name: str, homes: list[Made], request_: Newcomer, seed: int
) -> None:
    """An empty instance with memory for all is there, and others that are too small."""
    for home in homes:
        home.capacity_tokens, home.role = min(500, request_.num_tokens - 1), Role.MIXED
    numbered(homes)
    homes[-1].capacity_tokens, homes[-1].running, homes[-1].waiting = 50_000, [], []
    homes[-1].max_running = 16
    assert PLACEMENTS[name]().choose(request_, homes, seed) == homes[-1].instance


def test_a_cached_prompt_makes_no_room_for_more_than_a_pool_holds() -> None:
    homes = [Made(0, capacity_tokens=400, cached=400), Made(1), Made(2)]
    drawn = {PowerOfTwo().choose(newcomer(500, 10), homes, seed) for seed in range(40)}
    assert drawn == {1}  # of two alike

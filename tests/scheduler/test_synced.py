"""EcoServe's policies: two queues, exact room, groups, and what becomes of wrong predictions."""

import numpy as np
import pytest

from daemon.core.values.actions import Started
from daemon.core.view.view import snapshot
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.scheduler.fillers.nested import longest_of
from daemon.scheduler.fillers.ordered import best_fit
from daemon.scheduler.padded_ends import PaddedEnds
from daemon.scheduler.scheduler import Scheduler
from daemon.wire.columns import int32
from tests.core.driver import Driver, configured

BLOCK = 4


def driver_of(
    policy: str, num_blocks: int, step_s: float = 0.001, **changes: object
) -> tuple[Driver, Scheduler]:
    config = configured(policy, prefix_cache=False, **changes)  # type: ignore[arg-type]
    driver = Driver(config, num_blocks, step_s)
    return driver, driver.core.instances[0].scheduler


def arrive(driver: Driver, length: int, answer: int, told: int = 0, most: int = 0) -> int:
    """A prompt of so many tokens, an answer of so many, and what is predicted of it."""
    request = driver.arrive([driver.requests % 7] * length, most or answer)
    driver.predict(request, told or answer)
    return request * 128


def states(driver: Driver) -> list[str]:
    return [one.state for one in snapshot(driver.core, driver.now).sequences]


def test_an_answer_waits_with_its_prompt_until_its_predicted_length_has_room() -> None:
    driver, scheduler = driver_of("synced-d", 16)
    first, second = arrive(driver, 8, 36), arrive(driver, 8, 36)
    for _ in range(4):
        driver.answer()
    assert states(driver) == ["decode", "ready"]
    assert driver.num_outputs(second) == 1, "the prompt's own token"
    reservations = scheduler.kv.reservations
    assert reservations.num_reserved == 11 and reservations.has(driver.core.sequences[first].slot)
    while first in driver.alive:
        driver.answer()
    driver.answer()
    assert states(driver) == ["decode"]
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_prompts_run_ahead_no_further_than_their_share() -> None:
    driver, _ = driver_of("synced-d", 40)
    arrive(driver, 8, 100)
    driver.answer()
    for _ in range(4):
        arrive(driver, 8, 100)
    for _ in range(6):
        driver.answer()
    assert states(driver).count("ready") == 1, "one alone may always be computed"
    driver.settle()
    assert driver.core.counters.preemptions == 0


def test_an_answer_is_kept_what_half_of_such_answers_take() -> None:
    """Predicted at 16, they took 8, 16 or 32."""
    driver, scheduler = driver_of("synced-d", 64)
    for number in range(48):
        arrive(driver, 8, (8, 16, 32)[number % 3], told=16)
        driver.settle()
    arrive(driver, 8, 16, told=16, most=60)
    while not scheduler.kv.reservations.num_slots:
        driver.answer()
    (slot,) = scheduler.slots.order().tolist()
    assert scheduler.kv.lending.num_reserved(slot) == 24 // BLOCK
    driver.settle()


def test_one_that_outgrows_its_prediction_goes_on_in_what_is_there() -> None:
    driver, scheduler = driver_of("synced-d", 16)
    one = arrive(driver, 8, 30, told=8)
    for _ in range(8):
        driver.answer()
    assert scheduler.kv.reservations.num_reserved == 4
    for _ in range(4):
        driver.answer()
    assert scheduler.kv.reservations.num_reserved > 4, "it is expected to be twice as long"
    driver.settle()
    assert one in driver.ended and driver.core.counters.preemptions == 0


def test_one_whose_last_token_is_on_its_way_has_outgrown_nothing() -> None:
    """Steps are planned ahead of answers: the next one is planned before it is known to end."""
    driver, scheduler = driver_of("synced-d", 32, depth=3)
    one = arrive(driver, 8, 12, most=60)
    driver.answer()
    ends, ahead = PaddedEnds(scheduler.order), False
    while driver.num_outputs(one) < 12:
        slots = scheduler.slots.order()
        ends.renew(slots)
        ahead = ahead or bool((scheduler.slots.known[slots] >= 20).any())
        assert not ends.late(slots).any()
        driver.answer()
    ends.renew(slots)
    assert ahead and ends.late(slots).all()
    driver.settle()
    driver.check_nothing_left()


def test_one_that_outgrows_what_is_there_stops_and_keeps_what_it_holds() -> None:
    """Seven of sixteen blocks are one's, nine the other's, who was predicted to be short."""
    driver, scheduler = driver_of("synced-d", 16)
    arrive(driver, 8, 18)
    late = arrive(driver, 16, 40, told=18)
    seen = set()
    while len(driver.ended) < 2:
        table = scheduler.slots
        slot = driver.core.sequences[late].slot if late in driver.alive else -1
        if slot >= 0 and table.known[slot] > 36:
            seen.add(scheduler.kv.reservations.has(slot))
        driver.answer()
    assert late in driver.ended and driver.core.counters.recomputed_tokens == 0
    driver.check_nothing_left()


def test_a_prediction_that_comes_late_makes_a_reservation_of_its_length() -> None:
    driver, scheduler = driver_of("synced-d", 32)
    request = driver.arrive([3] * 8, 80)
    for _ in range(3):
        driver.answer()
    reservations = scheduler.kv.reservations
    assert reservations.num_reserved == 22
    driver.predict(request, 20)
    driver.answer()
    assert reservations.num_reserved == 7
    driver.predict(request, 60)
    driver.answer()
    assert reservations.num_reserved == 17
    driver.settle()


@pytest.mark.parametrize("policy", ["orca", "static"])
def test_what_was_reserved_by_predictions_is_no_reservation_of_a_limit(policy: str) -> None:
    driver, scheduler = driver_of("synced-d", 24)
    for _ in range(2):
        arrive(driver, 8, 60, told=20)
    for _ in range(4):
        driver.answer()
    driver.choose(policy)
    reservations = scheduler.kv.reservations
    assert reservations.num_slots == 1 and reservations.num_reserved == 17
    driver.settle()
    assert len(driver.ended) == 2
    driver.check_nothing_left()


def test_those_of_one_length_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the first has ended, the third, which is as long as the second, goes before the one
    between them.
    """
    begun: dict[str, set[int]] = {}
    for policy in ("synced-d", "synced-sd"):
        monkeypatch.setattr("daemon.scheduler.fillers.decoupled.PROMPT_SHARE", 0.2)
        driver, scheduler = driver_of(policy, 34)
        first = arrive(driver, 8, 100)
        driver.answer()
        others = [arrive(driver, 4, length) for length in (40, 64, 40, 40)]
        while first in driver.alive:
            driver.answer()
        driver.answer()
        running = [one for one in others if scheduler.kv.reservations.has(_slot(driver, one))]
        begun[policy] = {others.index(one) for one in running}
        driver.settle()
        driver.check_nothing_left()
    assert begun == {"synced-d": {0, 1}, "synced-sd": {0, 2, 3}}


def test_a_group_is_of_one_predicted_length_whatever_the_prompts_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of the same length, with a longer prompt, ends after as many steps; one with the same end
    and a shorter answer does not.
    """
    monkeypatch.setattr("daemon.scheduler.fillers.decoupled.PROMPT_SHARE", 0.3)
    driver, scheduler = driver_of("synced-sd", 40)
    blocking = arrive(driver, 8, 100)
    driver.answer()
    first, same_end, same_length = (arrive(driver, *each) for each in ((4, 64), (12, 56), (12, 64)))
    while blocking in driver.alive:
        driver.answer()
    driver.answer()
    begun = [scheduler.kv.reservations.has(_slot(driver, each)) for each in (first, same_length)]
    assert begun == [True, True]
    assert not scheduler.kv.reservations.has(_slot(driver, same_end))
    driver.settle()


def _slot(driver: Driver, sequence: int) -> int:
    return driver.core.sequences[sequence].slot


def test_another_policy_takes_over_and_gives_back() -> None:
    driver, scheduler = driver_of("sarathi", 24)
    for _ in range(3):
        arrive(driver, 8, 30)
    for _ in range(4):
        driver.answer()
    driver.choose("synced-d")
    driver.answer()
    assert scheduler.kv.reservations.num_slots > 0
    driver.choose("orca")
    driver.answer()
    driver.choose("synced-sd")
    driver.settle()
    assert len(driver.ended) == 3
    driver.check_nothing_left()


def test_of_one_deadline_range_the_longest_begins_first_and_then_what_fits_best() -> None:
    places, lacking = np.arange(4), int32([9, 7, 4, 2])
    assert best_fit(places, lacking, 11).tolist() == [0, 3]
    assert best_fit(places, lacking, 8).tolist() == [1]
    assert best_fit(places, lacking, 1).tolist() == []


def test_halves_are_lent_and_the_borrower_is_gone_before_its_lender_needs_them() -> None:
    """The lender has 26 of 30 blocks; its borrower needs ten, and is done in time."""
    driver, scheduler = driver_of("synced", 30)
    lender = arrive(driver, 8, 96)
    driver.answer()
    driver.answer()
    borrower = arrive(driver, 4, 30)
    lent = 0
    while borrower in driver.alive:
        driver.answer()
        lent = max(lent, sum(one.num_blocks for one in scheduler.kv.lending))
    assert lent == 8 and lender in driver.alive
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_one_whose_prompt_waits_is_lent_room_for_it_and_its_answer() -> None:
    """Of 40 blocks 34 are reserved, and two are the prompts' share, which the second has: the third
    borrows before its prompt is computed.
    """
    driver, scheduler = driver_of("synced", 40, max_len=200)
    lender = arrive(driver, 8, 128)
    driver.answer()
    driver.answer()
    arrive(driver, 8, 120)  # too long for the half
    borrower = arrive(driver, 8, 24)
    driver.answer()
    (loan,) = scheduler.kv.lending
    assert scheduler.slots.member(loan.borrower).id == borrower and loan.num_blocks == 8
    assert scheduler.slots.member(loan.lender).id == lender
    while borrower in driver.alive:
        driver.answer()
    assert lender in driver.alive
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_of_two_that_fit_the_one_whose_deadline_is_far_borrows() -> None:
    """Though the other one is longer, and so nearer to half."""
    loose = np.array([False, True, True, False])
    fits = np.array([True, True, False, True])
    assert longest_of(fits, loose) == 1
    assert longest_of(fits & ~loose, loose) == 3
    assert longest_of(fits & False, loose) == -1


@pytest.mark.parametrize(("name", "requests", "loans"), [("sharegpt", 300, 75), ("skew", 600, 240)])
def test_a_workload_lends_and_true_lengths_make_nobody_leave(
    name: str, requests: int, loans: int
) -> None:
    """Of requests that are all there at once: at least 25 loans for 100 of ShareGPT, 40 of skew."""
    workload = WorkloadSpec(name=name, requests=requests, arrivals="closed", seed=0)
    group = InstanceGroup(profile="opt-13b@a100-80g", kv_bytes=12e9)
    asked = Scenario(
        workload=workload,
        instance=(group,),
        policy="synced",
        predictor="oracle",
        limits=ScenarioLimits(max_len=2048),
    )
    prepared = prepare(asked)
    report = report_of(prepared, run(prepared))
    assert report.loans is not None and report.loans >= loans
    assert report.preemptions == 0


def test_a_borrower_that_is_late_leaves_before_its_lender_waits() -> None:
    driver, scheduler = driver_of("synced", 30)
    lender = arrive(driver, 8, 96)
    driver.answer()
    driver.answer()
    late = arrive(driver, 4, 90, told=30)
    steps = 0
    while lender in driver.alive:
        driver.answer()
        steps += 1
        kv, slot = (
            scheduler.kv,
            driver.core.sequences[lender].slot if lender in driver.alive else -1,
        )
        if slot >= 0:
            assert driver.num_outputs(lender) == steps + 2, "the lender has a token in every step"
            kv.lending.check()
    assert driver.core.counters.preemptions > 0
    driver.settle()
    assert late in driver.ended
    driver.check_nothing_left()


def test_packed_answers_use_what_others_need_later() -> None:
    """Two that end at 104 tokens do not fit into 36 blocks; one of them and shorter ones do."""
    driver, scheduler = driver_of("packed", 36)
    long = arrive(driver, 8, 96)
    driver.answer()
    second = arrive(driver, 8, 96)
    short = [arrive(driver, 8, 24) for _ in range(3)]
    most = 0
    while long in driver.alive:
        driver.answer()
        most = max(most, scheduler.num_running)
    assert second in driver.alive and not set(short) & driver.alive.keys()
    assert most >= 3, "short ones beside the long one"
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()


def test_packed_answers_that_are_late_leave_for_those_in_time() -> None:
    driver, _ = driver_of("packed", 36)
    on_time = arrive(driver, 8, 96)
    driver.answer()
    late = arrive(driver, 8, 90, told=24)
    driver.settle()
    assert {on_time, late} <= driver.ended.keys()
    preempted = [one.id for one in driver.core.ended if one.preemptions]
    assert preempted == [late]


def _started_beside_two(most_passes: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Who starts beside two that end together: 0 would end with them, the others before."""
    monkeypatch.setattr("daemon.scheduler.fillers.packed.MOST_PASSES", most_passes)
    driver, _ = driver_of("packed", 80)
    for _ in range(2):
        arrive(driver, 8, 96)
    for _ in range(10):
        driver.answer()
    waiting = [arrive(driver, 8, length) for length in (96, 60, 30, 45)]
    driver.settle()
    assert driver.core.counters.preemptions == 0
    driver.check_nothing_left()
    started = [one.sequence for made in driver.actions for one in made if isinstance(one, Started)]
    return [waiting.index(one) for one in started[2:]]


def test_packed_answers_keep_their_ends_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have room; who would end beside others comes last."""
    assert _started_beside_two(16, monkeypatch) == [1, 2, 3, 0]


def test_the_first_is_not_passed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _started_beside_two(1, monkeypatch) == [1, 0, 2, 3]
    assert _started_beside_two(0, monkeypatch) == [0, 1, 2, 3]


def test_one_that_had_to_leave_is_the_first_to_come_back() -> None:
    """Though it is due later than others that wait."""
    driver, scheduler = driver_of("packed", 36, step_s=1.0)
    arrive(driver, 8, 96)
    driver.answer()
    late = arrive(driver, 8, 90, told=24)
    others = []
    while driver.core.sequences[late].preemptions == 0:
        driver.answer()
        if driver.num_outputs(late) == 24:
            others = [arrive(driver, 8, 8) for _ in range(12)]
    assert set(others) & driver.alive.keys()
    assert scheduler.waiting.first.id == late
    driver.settle()
    assert late in driver.ended
    driver.check_nothing_left()


@pytest.mark.parametrize("policy", ["sarathi", "gittins"])
def test_room_at_the_future_peak_makes_nobody_give_way(policy: str) -> None:
    """With true predictions; without the rule somebody does."""
    preemptions = []
    for rule in ("greedy", "reserve_peak"):
        driver, _ = driver_of(policy, 30, decode_admission=rule, max_pause_s=1000.0)
        for length in (40, 60, 30, 80, 20, 50):
            arrive(driver, 8, length)
        driver.settle()
        assert len(driver.ended) == 6
        preemptions.append(driver.core.counters.preemptions)
    assert preemptions[0] > preemptions[1] == 0


def test_a_scale_of_the_time_alone_is_a_deadline_and_ones_own_counts_instead() -> None:
    """Who has a tight scale is first, whoever came before; nobody is ended for being late."""
    driver, _ = driver_of("synced-sdo", 40, max_running=1)
    driver.step_s = 1.0
    driver.lose(0)
    driver.ready(0, 40)
    driver.arrive([9] * 8, 8)
    driver.answer()
    asked = {"loose": (50.0, 0.0), "tight": (1.2, 0.0), "own": (1.0, driver.now + 500.0)}
    sequences = {}
    for name, (scale, due) in asked.items():
        request = driver.arrive([8] * 4, 8, slo_scale=scale, deadline_s=due)
        driver.predict(request, 8)
        sequences[name] = driver.core.sequences[request * 128]
    assert sorted(sequences, key=lambda one: sequences[one].rank) == ["tight", "loose", "own"]
    driver.settle()
    assert {one.scale for one in driver.core.counters.due} == {0.0, 1.2, 50.0}

"""The Core event by event: what it answers, and what it keeps."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Rejected, Started, Submit, WakeAt
from daemon.core.values.events import Configured, Sealed, StepDone, Tick
from daemon.core.values.snapshot import Counters
from daemon.core.view.view import snapshot
from daemon.memory.hashing import HASH_BYTES, chain_hashes
from daemon.state.request import TRANSITIONS, FinishReason, State
from daemon.state.sequence import Sequence, TransitionError
from daemon.wire.columns import int32
from tests.core.driver import Driver, configured

PROMPT = list(range(12))


def submits(driver: Driver) -> list[Submit]:
    return [a for actions in driver.actions for a in actions if isinstance(a, Submit)]


def cached(driver: Driver) -> list[int]:
    actions = [a for actions in driver.actions for a in actions]
    return [a.num_cached_tokens for a in actions if isinstance(a, Started)]


def test_errors_of_predictions_are_told_by_their_median_and_by_who_is_near() -> None:
    counters = Counters()
    assert counters.median_error == 0.0
    for predicted in (9, 11, 13, 19, 500):  # of 10: the last is off by 4,900 %
        counters.note_answer(1.0, 10, predicted)
    assert counters.prediction_count == sum(counters.prediction_errors) == 5
    assert counters.prediction_errors[-1] == 1
    assert 0.2 < counters.median_error <= 0.3
    assert counters.predictions_near == 4
    for predicted in (5, 4, 20, 21, 0):
        counters.note_answer(1.0, 10, predicted)
    assert counters.predictions_near == 6, "half and twice are near, less and more are not"
    for _ in range(50):
        counters.note_answer(1.0, 10, 1000)
    assert counters.median_error == 16.0, "as far as is told apart"


@pytest.mark.parametrize("old", State)
@pytest.mark.parametrize("new", State)
def test_the_table_of_states_is_the_only_way(old: State, new: State) -> None:
    sequence = Sequence(1, 1, 1, 0, 0.0, 0, state=old)
    if new in TRANSITIONS[old]:
        sequence.move(new)
        assert sequence.state is new
    else:
        with pytest.raises(TransitionError):
            sequence.move(new)


def test_a_foreign_event_is_an_error() -> None:
    with pytest.raises(TypeError):
        Core(configured()).handle(configured())


def test_an_answer_nobody_awaits_changes_nothing() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 4)
    before = driver.core.counters.output_tokens
    assert driver.handle(StepDone(0.0, 0, 99, int32([0]), 0.001)) == []
    assert driver.core.counters.output_tokens == before


def test_answers_that_do_not_fit_the_rows_are_an_error() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 4)
    with pytest.raises(ValueError, match="2 answers for 1 rows"):
        driver.handle(StepDone(0.0, 0, 1, int32([0, 0]), 0.001))


# Prefix cache and copies


def test_a_prefix_is_found_while_it_is_held_and_after() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 4)
    driver.answer()
    driver.arrive([*PROMPT[:8], 99, 98], 1)
    driver.settle()
    driver.arrive(PROMPT, 1)
    driver.settle()
    assert cached(driver) == [0, 8, 8], "two blocks of four; one token is left to compute"


def test_generated_tokens_are_found_once_sealed() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 9)
    for _ in range(7):
        driver.answer()
    driver.seal(0)
    driver.settle()
    driver.arrive(driver.known[0], 1)
    driver.settle()
    assert cached(driver) == [0, 16]


def test_older_journals_tell_filled_blocks_in_events_of_their_own() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 9)
    for _ in range(7):
        driver.answer()
    hashes = chain_hashes(driver.known[0], driver.config.block_size)
    driver.handle(Sealed(driver.now, 0, 3, hashes[3 * HASH_BYTES :]))
    driver.settle()
    driver.arrive(driver.known[0], 1)
    driver.settle()
    assert cached(driver) == [0, 16]


def test_the_longest_idle_prefix_is_evicted_first() -> None:
    driver = Driver(configured(), 9)
    for first in (1, 2):
        driver.arrive([first] * 12, 1)
        driver.settle()
    driver.arrive([3] * 14, 1)  # four blocks; two are free and two must be evicted
    driver.settle()
    driver.arrive([2] * 13, 1)
    driver.settle()
    assert cached(driver)[-1] == 12, "the second is still there"
    driver.arrive([1] * 13, 1)
    driver.settle()
    assert cached(driver)[-1] < 12, "the first was left longest ago"


def test_without_a_prefix_cache_nothing_is_found() -> None:
    driver = Driver(configured(prefix_cache=False), 32)
    for _ in range(2):
        driver.arrive(PROMPT, 2)
        driver.settle()
    assert cached(driver) == [0, 0]


def test_streams_of_one_request_share_the_prompt_and_copy_its_end() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT[:10], 6, n=3)
    driver.settle()
    copies = [copy for one in submits(driver) for copy in one.batch.copy_targets.tolist()]
    assert len(copies) == 2
    assert cached(driver) == [0, 9, 9], "all but the last prompt token"
    assert len({tuple(driver.known[sequence]) for sequence in (0, 1, 2)}) > 1
    driver.check_nothing_left()


def test_streams_outlive_their_leader() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 6, n=3)
    driver.finish(0)
    driver.settle()
    assert driver.ended == {
        0: FinishReason.STOP,
        1: FinishReason.LENGTH,
        2: FinishReason.LENGTH,
    }


# Refusals


def refusal(driver: Driver, request: int) -> Rejected:
    return driver.rejected[request]


def test_a_full_queue_names_a_wait_learned_from_finishes() -> None:
    driver = Driver(configured(max_running=1, max_waiting=2), 32)
    for _ in range(3):
        driver.arrive(PROMPT, 3)
    unknown = refusal(driver, driver.arrive(PROMPT, 3))
    assert (unknown.kind, unknown.retry_after_s) == ("queue_full", 1.0)
    driver.now += 2.0
    while len(driver.ended) < 2:
        driver.answer()
        driver.now += 0.5
    for _ in range(2):
        driver.arrive(PROMPT, 3)
    wait_s = refusal(driver, driver.arrive(PROMPT, 3)).retry_after_s
    assert 1.0 < wait_s < 2.5, "three steps of half a second for each"


def test_an_idle_hour_does_not_count_as_a_wait() -> None:
    driver = Driver(configured(max_running=1, max_waiting=1), 32)
    for _ in range(3):
        driver.now += 3600.0
        driver.arrive(PROMPT, 2)
        driver.settle()
    driver.now += 3600.0
    driver.arrive(PROMPT, 2)
    driver.arrive(PROMPT, 2)
    assert refusal(driver, driver.arrive(PROMPT, 2)).retry_after_s < 1.0


def test_what_cannot_be_taken_is_refused_by_kind() -> None:
    driver = Driver(configured(max_waiting=3))
    assert refusal(driver, driver.arrive(PROMPT)).kind == "not_ready"
    driver.ready(0, 8)
    assert refusal(driver, driver.arrive(PROMPT, 200)).kind == "too_long", "the model's limit"
    assert refusal(driver, driver.arrive(PROMPT, 21)).kind == "too_long", "33 tokens in 32"
    assert refusal(driver, driver.arrive(PROMPT, 8, n=4)).kind == "too_many", "more than the queue"
    driver.drain()
    assert refusal(driver, driver.arrive(PROMPT)).kind == "draining"


def test_a_sequence_that_fills_the_whole_pool_ends() -> None:
    driver = Driver(configured(), 8)
    driver.arrive(PROMPT, 20)
    driver.settle()
    assert driver.ended == {0: FinishReason.LENGTH}


def test_draining_finishes_what_is_here() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 5)
    driver.drain()
    driver.settle()
    assert driver.ended == {0: FinishReason.LENGTH}
    driver.check_nothing_left()


# Steps in flight


def test_the_second_step_is_planned_late() -> None:
    driver = Driver(configured(depth=2), 32, step_s=0.01)
    driver.arrive(PROMPT, 20)
    driver.answer()
    assert len(driver.workers[0].pending) == 1
    asked = [a for a in driver.actions[-1] if isinstance(a, WakeAt)]
    assert len(asked) == 1 and 0.0 < asked[0].time_s - driver.now < 0.01
    driver.handle(Tick(asked[0].time_s - 0.001))
    assert len(driver.workers[0].pending) == 1
    driver.tick()
    assert len(driver.workers[0].pending) == 2
    driver.settle()
    assert driver.num_outputs(0) == 20


@pytest.mark.parametrize(("step_s", "depth"), [(0.001, 2), (0.05, 1)])
def test_depth_follows_the_step_time(step_s: float, depth: int) -> None:
    config = configured(depth=0)
    assert Driver(config, 32, step_s).core.instances[0].depth == depth
    (instance,) = config.instances
    ahead = msgspec.structs.replace(instance, ahead=True)
    config = msgspec.structs.replace(config, instances=(ahead,))
    assert Driver(config, 32, step_s).core.instances[0].depth == 2


def test_tokens_after_a_stop_are_dropped() -> None:
    driver = Driver(configured(depth=2), 32)
    driver.arrive(PROMPT, 20)
    driver.tick()
    assert len(driver.workers[0].pending) == 2
    driver.answer(stops=frozenset({0}))
    driver.settle()
    assert driver.num_outputs(0) == 1 and driver.ended == {0: FinishReason.STOP}
    driver.check_nothing_left()


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(PROMPT, 1)
    driver.answer(stops=frozenset({0}))
    assert driver.ended == {0: FinishReason.STOP}


# Workers that die


def two(policy: str = "sarathi") -> Configured:
    return configured(policy, instances=2)


def test_a_lost_worker_s_sequences_move_to_the_survivor() -> None:
    driver = Driver(two(), 40)
    for number in range(6):
        driver.arrive([number, *PROMPT], 10)
    for _ in range(3):
        driver.answer(0)
        driver.answer(1)
    driver.lose(0)
    assert driver.core.instances[0].scheduler.num_running == 0
    assert len(driver.core.instances[0].scheduler.waiting) == 0
    driver.settle()
    assert all(driver.num_outputs(sequence) == 10 for sequence in driver.ended)
    assert len(driver.ended) == 6


def test_what_waits_for_a_lost_worker_goes_to_one_that_comes_up() -> None:
    driver = Driver(two())
    driver.ready(0, 40)
    driver.arrive(PROMPT, 5, n=2)
    driver.answer()
    driver.lose(0)
    driver.ready(1, 40)
    driver.settle()
    assert [driver.num_outputs(sequence) for sequence in (0, 1)] == [5, 5]


def test_what_no_worker_can_hold_any_more_fails() -> None:
    driver = Driver(configured(), 40)
    driver.arrive(PROMPT, 30, n=2)
    driver.answer()
    driver.lose(0)
    driver.ready(0, 5)
    assert driver.ended == {0: FinishReason.ERROR, 1: FinishReason.ERROR}
    driver.arrive(PROMPT, 4)
    driver.settle()
    driver.check_nothing_left()


def test_streams_whose_leader_is_gone_from_a_lost_worker_run_elsewhere() -> None:
    driver = Driver(two())
    driver.ready(0, 40)
    driver.arrive(PROMPT, 5, n=3)
    driver.lose(0)
    driver.finish(0)
    driver.ready(1, 40)
    driver.settle()
    assert [driver.num_outputs(sequence) for sequence in (1, 2)] == [5, 5]


def test_a_snapshot_is_a_copy() -> None:
    driver = Driver(configured(max_running=2), 32)
    for _ in range(3):
        driver.arrive(PROMPT, 5)
    driver.answer()
    view = snapshot(driver.core, driver.now)
    assert (view.running, view.waiting) == (2, 1)
    assert [one.state for one in view.sequences] == ["decode", "decode", "waiting"]
    finished = view.counters.finished
    driver.settle()
    assert view.counters.finished == finished
    after = snapshot(driver.core, driver.now).instances[0]
    assert not after.kv_used and after.kv_free + after.kv_cached == after.kv_blocks == 32


def test_what_was_swapped_and_who_arrives_is_known_beyond_a_workers_life() -> None:
    """Counts only rise, whatever dies; the next worker's host pool is empty."""
    config = configured("priority", swap="proactive", prefix_cache=False)
    driver = Driver(config, 13, num_host_blocks=40)
    driver.arrive([1] * 20, 30)
    driver.settle()
    instance = driver.core.instances[0]
    before, learned = instance.status(), instance.scheduler.residency.reserve.state()
    assert before.out_blocks > 0, "blocks are copied ahead as the pool fills"
    driver.lose(0)
    driver.ready(0, 13)
    after = instance.status()
    assert (after.out_blocks, after.link_s) == (before.out_blocks, before.link_s)
    assert after.host_held == 0
    assert instance.scheduler.residency.reserve.state() == learned

"""Sequences that go on at another instance: handoff, orders, flips, drains, deaths."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Send, Submit
from daemon.core.values.events import Reconfigured
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.core.view.view import story
from daemon.state.request import sequence_id
from daemon.state.role import Role
from daemon.state.sequence import Where
from daemon.state.story import What
from tests.core.driver import Driver, configured

PROMPT = list(range(3, 25))  # 22 tokens, five full blocks and a half


def two(
    roles: tuple[Role, Role] = (Role.MIXED, Role.MIXED), num_blocks: int = 40, **changes: object
) -> Driver:
    """Two instances, a and b, that can send to each other."""
    config = configured("sarathi", 2, **changes)
    instances = tuple(
        msgspec.structs.replace(one, role=role)
        for one, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=instances), num_blocks)
    driver.link_all()
    return driver


def home(driver: Driver, request: int, index: int = 0) -> int:
    return driver.core.sequences[sequence_id(request, index)].instance


def home_slot(driver: Driver, request: int) -> bool:
    return driver.core.sequences[sequence_id(request, 0)].slot >= 0


def sends(driver: Driver) -> list[Send]:
    return [one for actions in driver.actions for one in actions if isinstance(one, Send)]


def sent_blocks(driver: Driver) -> int:
    return sum(len(one.blocks) for one in sends(driver))


def whats(driver: Driver, request: int) -> list[str]:
    story = driver.core.sequences[sequence_id(request, 0)].story
    return [what for _, what, _, _ in story.marks]


def run_until_tokens(driver: Driver, request: int, count: int, instance: int) -> None:
    while driver.num_outputs(sequence_id(request, 0)) < count:
        assert driver.answer(instance)


def test_a_prompt_is_computed_at_one_instance_and_its_answer_at_the_other() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    request = driver.arrive(PROMPT, 8)
    assert home(driver, request) == 0
    driver.answer(0)  # 16 of 22 tokens: a chunk, whose four full blocks go ahead
    assert sent_blocks(driver) == 4 and home(driver, request) == 0
    driver.land_all()
    driver.answer(0)  # the first token
    driver.land_all()  # and the fifth full block
    driver.answer(0)  # a second one meanwhile; the rest follows
    assert home(driver, request) == 1
    assert driver.num_outputs(sequence_id(request, 0)) == 2
    assert sent_blocks(driver) == 6  # each block once, the half full one too
    assert not driver.workers[1].pending
    driver.land_all()
    assert driver.workers[1].pending, "it goes on at once"
    driver.settle()
    assert driver.core.counters.handoffs == 1 and driver.core.counters.recomputed_tokens == 0
    driver.check_nothing_left()


def test_the_way_of_a_prompt_changes_while_prompts_are_computed() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    driver.handle(Reconfigured(driver.now, 1000, 0.3, handoff="serialized"))
    driver.arrive(PROMPT, 8)
    driver.answer(0)
    assert sent_blocks(driver) == 4 and not any(send.layered for send in sends(driver))
    driver.settle()
    driver.handle(Reconfigured(driver.now, 1000, 0.3, handoff="layered"))
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert later.config.handoff == "layered", "a journal's next file keeps it"
    driver.arrive(PROMPT[::-1], 8)
    driver.answer(0)
    assert any(send.layered for send in sends(driver))
    driver.settle()
    driver.check_nothing_left()


def test_a_handoff_is_no_swap_and_its_story_names_the_other_instance() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    request = driver.arrive(PROMPT, 8)
    while home(driver, request) == 0:
        driver.answer(0)
        driver.land_all()
    driver.settle()
    counters = driver.core.counters
    assert (counters.handoffs, counters.swaps_in, counters.swaps_out) == (1, 0, 0)
    told = story(driver.core, sequence_id(request, 0), driver.now)
    (mark,) = [one for one in told.marks if one.what in (What.FETCHED, What.FOLLOWED)]
    assert (mark.what, mark.other) == (What.FOLLOWED, 0) and mark.amount > 0


def test_what_the_target_has_is_not_sent() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    driver.arrive(PROMPT, 4)
    driver.settle()
    before = sent_blocks(driver)
    driver.arrive([*PROMPT[:16], 7, 7, 7], 4)
    driver.settle()
    assert sent_blocks(driver) - before == 1  # of five, four are there


def test_streams_of_one_request_send_shared_blocks_once() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    driver.arrive(PROMPT, 4, n=3)
    driver.settle()
    assert sent_blocks(driver) == 5 + 3  # the full ones once, each stream's own half full one


def test_a_running_sequence_is_copied_ahead_and_misses_at_most_one_step() -> None:
    driver = two()
    request = driver.arrive(PROMPT, 12)
    run_until_tokens(driver, request, 2, 0)
    driver.move(sequence_id(request, 0), 1)
    assert home(driver, request) == 0 and sent_blocks(driver) == 5  # while its step computes
    assert sends(driver)[-1].num_tokens == 20
    driver.answer(0)
    assert home(driver, request) == 0, "it runs on until they have landed"
    driver.land_all()
    driver.answer(0)
    assert home(driver, request) == 1 and sent_blocks(driver) == 7
    outputs = driver.num_outputs(sequence_id(request, 0))
    driver.land_all()
    driver.answer(1)
    assert driver.num_outputs(sequence_id(request, 0)) == outputs + 1
    assert whats(driver, request).count(What.SENT_AHEAD) == 1
    assert [one.at_once for one in sends(driver)] == [False, True], "the rest waits for no step"
    assert {What.LEFT, What.LANDED} <= set(whats(driver, request))
    driver.settle()
    driver.check_nothing_left()


def test_one_that_waits_changes_queues() -> None:
    driver = two(max_running=1)
    first = driver.arrive(PROMPT, 8)
    second = driver.arrive(PROMPT, 8)
    third = driver.arrive([1, 2, 3], 8)  # waits behind the first
    assert (home(driver, first), home(driver, second), home(driver, third)) == (0, 1, 0)
    driver.move(sequence_id(third, 0), 1)
    assert home(driver, third) == 1 and not sends(driver)
    driver.settle()


def test_a_swapped_out_sequence_moves_from_host_memory() -> None:
    config = configured("speculative", 2, max_running=1, swap="reactive", prefix_cache=False)
    driver = Driver(config, 40, num_host_blocks=40, copy_block_s=1e-9, token_s=1e-4)
    driver.link_all()
    long = [driver.arrive([token] * 30, 60) for token in (5, 6)]
    for _ in range(3):
        driver.answer(0)
        driver.answer(1)
    short = driver.arrive([1], 2)
    driver.predict(short, 2)
    driver.answer(home(driver, short))
    sequence = next(
        driver.core.sequences[sequence_id(one, 0)] for one in long if not home_slot(driver, one)
    )
    assert sequence.residence.where is Where.HOST
    before = sequence.recomputed_tokens
    driver.move(sequence.id, 1 - sequence.instance)
    assert sequence.residence.remote_kv is not None and sequence.residence.remote_kv.from_host
    driver.settle()
    assert any(one.from_host for one in sends(driver))
    assert sequence.recomputed_tokens == before
    driver.check_nothing_left()


def test_wrong_blocks_are_computed_again() -> None:
    driver = two((Role.PREFILL, Role.DECODE), prefix_cache=False)
    request = driver.arrive(PROMPT, 6)
    run_until_tokens(driver, request, 1, 0)
    (send,) = sends(driver)
    driver.land(send.transfer, 1, 2)  # two of six blocks are right
    driver.land(send.transfer, 0)
    sequence = driver.core.sequences[sequence_id(request, 0)]
    assert sequence.recomputed_tokens == 22 - 8
    driver.settle()
    assert driver.core.counters.handoffs_failed == 1
    driver.check_nothing_left()


@pytest.mark.parametrize("dies", [0, 1])
@pytest.mark.parametrize("landed", [False, True])
def test_an_end_that_dies_costs_no_token(dies: int, landed: bool) -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    request = driver.arrive(PROMPT, 6)
    run_until_tokens(driver, request, 1, 0)
    if landed:
        driver.land_all()
    driver.lose(dies)
    assert home(driver, request) == 1 - dies
    driver.settle()
    assert not driver.alive, "the other instance finishes it, whatever its role"


def test_target_blocks_stay_until_the_target_says_so() -> None:
    driver = two((Role.PREFILL, Role.DECODE), prefix_cache=False)
    request = driver.arrive(PROMPT, 6)
    run_until_tokens(driver, request, 1, 0)
    (send,) = sends(driver)
    driver.abort(request)
    for instance in (0, 1):
        assert driver.core.instances[instance].scheduler.kv.pool.ledger().held == 6
    driver.land(send.transfer, 0)
    assert driver.core.instances[0].scheduler.kv.pool.ledger().held == 0
    assert driver.core.instances[1].scheduler.kv.pool.ledger().held == 6
    driver.land(send.transfer, 1)
    driver.check_nothing_left()


def test_two_that_exchange_sequences_with_full_pools_do_not_wait_for_each_other() -> None:
    driver = two(num_blocks=12, max_running=1, prefix_cache=False, max_len=48)
    first = driver.arrive([1] * 38, 6)
    second = driver.arrive([2] * 38, 6)
    run_until_tokens(driver, first, 2, 0)
    run_until_tokens(driver, second, 2, 1)
    driver.move(sequence_id(first, 0), 1)
    driver.move(sequence_id(second, 0), 0)
    driver.settle()
    assert not driver.alive


def test_kv_that_waits_for_its_decode_instance_keeps_prompts_out() -> None:
    driver = two((Role.PREFILL, Role.DECODE), num_blocks=14, max_running=1, prefix_cache=False)
    for _ in range(4):
        driver.arrive(PROMPT, 20)
    for _ in range(8):
        driver.answer(0)
        driver.land_all()
    prefill = driver.core.instances[0]
    assert prefill.status().remote_kvs == 2 and prefill.status().remote_kv_blocks == 12
    assert prefill.scheduler.num_running == 0 and len(prefill.scheduler.waiting) == 1
    driver.settle()
    driver.check_nothing_left()


def test_roles_are_preferences() -> None:
    for roles in ((Role.PREFILL, Role.PREFILL), (Role.DECODE, Role.DECODE)):
        driver = two(roles)
        for _ in range(4):
            driver.arrive(PROMPT, 6)
        driver.settle()
        assert not driver.alive and driver.core.counters.finished == 4


def test_a_flip_takes_effect_with_requests_in_flight() -> None:
    driver = two((Role.PREFILL, Role.DECODE), max_running=6)
    requests = [driver.arrive(PROMPT[:10], 30) for _ in range(4)]
    for _ in range(6):
        driver.answer(0)
        driver.land_all()
        driver.answer(1)
    assert {home(driver, one) for one in requests} == {1}
    driver.flip(1, Role.PREFILL)
    driver.flip(0, Role.DECODE)
    for _ in range(6):
        for instance in (0, 1):
            driver.answer(instance)
            driver.land_all()
    assert {home(driver, one) for one in requests} == {0}
    assert driver.core.counters.recomputed_tokens == 0
    late = driver.arrive(PROMPT, 4)
    assert home(driver, late) == 1
    driver.answer(1)
    to_prefill, to_decode = driver.core.migrator.flips.status(driver.now)
    assert to_prefill.flip_s >= 0.0 and to_prefill.clear_s > 0.0
    assert to_decode.flip_s > 0.0 and to_decode.clear_s >= 0.0
    driver.settle()
    driver.check_nothing_left()


def test_a_flip_is_idle_once_what_it_waited_for_has_ended() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    request = driver.arrive(PROMPT[:10], 4)
    while home(driver, request) != 1 or driver.num_outputs(sequence_id(request, 0)) < 2:
        driver.answer(0)
        driver.land_all()
        driver.answer(1)
    driver.flip(1, Role.PREFILL)
    driver.flip(0, Role.DECODE)
    (_, waits) = driver.core.migrator.flips.status(driver.now)
    assert not waits.idle and waits.flip_s < 0.0
    while driver.alive:
        driver.answer(1)
    (_, waits) = driver.core.migrator.flips.status(driver.now)
    assert waits.idle and waits.flip_s < 0.0


def test_a_prompt_that_is_computed_elsewhere_is_no_work_for_one_that_draws() -> None:
    driver = two((Role.PREFILL, Role.MIXED))
    driver.arrive(PROMPT, 4)
    driver.flip(1, Role.DECODE)
    (flip,) = driver.core.migrator.flips.status(driver.now)
    assert flip.idle


def test_a_drained_instance_is_left_idle_without_losing_a_token() -> None:
    driver = two(max_running=3)
    for length in (4, 9, 14, 22, 3):
        driver.arrive(PROMPT[:length], 10)
    driver.answer(0)
    driver.drain_one(0)
    assert not driver.core.instances[0].scheduler.waiting
    for _ in range(4):
        driver.answer(0)
        driver.land_all()
        driver.answer(1)
    assert not driver.core.instances[0].scheduler.num_running
    driver.arrive(PROMPT, 4)
    assert not driver.workers[0].pending
    driver.resume_one(0)
    driver.settle()
    assert driver.core.counters.finished == 6 and driver.core.counters.recomputed_tokens == 0


def test_the_only_instance_that_is_left_works_on_though_it_is_drained() -> None:
    driver = two()
    driver.drain_one(0)
    driver.lose(1)
    driver.arrive(PROMPT, 4)
    driver.settle()
    assert driver.core.counters.finished == 1


def test_a_stale_answer_changes_nothing() -> None:
    driver = two((Role.PREFILL, Role.DECODE))
    request = driver.arrive(PROMPT, 6)
    run_until_tokens(driver, request, 1, 0)
    held = [one.scheduler.kv.pool.ledger() for one in driver.core.instances]
    transfers = driver.core.migrator.transfers
    for instance, number in ((0, 99), (1, 99), (0, 0)):
        assert transfers.ended(instance, number, 5, 0.1) is None
    assert held == [one.scheduler.kv.pool.ledger() for one in driver.core.instances]
    driver.settle()


def test_nothing_is_sent_where_no_link_is_up() -> None:
    driver = Driver(configured("sarathi", 2), 40)
    request = driver.arrive(PROMPT, 6)
    run_until_tokens(driver, request, 2, 0)
    driver.move(sequence_id(request, 0), 1)
    driver.settle()
    assert not sends(driver) and not driver.alive
    assert any(isinstance(one, Submit) for actions in driver.actions for one in actions)


def test_a_long_prompt_goes_layer_by_layer_with_the_step_that_computes_it() -> None:
    driver = two((Role.PREFILL, Role.DECODE), prefill_chunk=32, handoff="layered")
    request = driver.arrive(PROMPT, 6)
    (send,) = sends(driver)
    assert send.layered and send.num_tokens == 20  # its full blocks
    first, second = [
        type(one).__name__ for one in driver.actions[-1] if type(one) in (Send, Submit)
    ]
    assert (first, second) == ("Send", "Submit")
    driver.land_all()
    target = driver.core.instances[1].scheduler.kv.pool
    assert target.ledger().cached == 0, "nothing is cached before the step has answered"
    driver.answer(0)
    assert home(driver, request) == 1 and sent_blocks(driver) == 6
    driver.settle()
    assert driver.core.counters.recomputed_tokens == 0
    driver.check_nothing_left()


def test_what_failed_as_it_was_computed_is_cached_nowhere() -> None:
    driver = two((Role.PREFILL, Role.DECODE), prefill_chunk=32, handoff="layered")
    driver.arrive(PROMPT, 6)
    driver.land_all()
    driver.answer(0, fails=frozenset({0}))
    driver.settle()
    assert [one.scheduler.kv.pool.ledger().cached for one in driver.core.instances] == [0, 0]
    driver.check_nothing_left()


def test_prompts_are_handed_to_decode_instances_before_mixed_ones() -> None:
    config = configured("sarathi", 3)
    roles = (Role.PREFILL, Role.DECODE, Role.MIXED)
    instances = tuple(
        msgspec.structs.replace(one, role=role)
        for one, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=instances), 40)
    driver.link_all()
    requests = [driver.arrive([token] * 9, 12) for token in range(4)]
    for _ in range(6):
        driver.answer(0)
        driver.land_all()
    assert {home(driver, one) for one in requests} == {1}
    driver.settle()


def test_a_stream_that_comes_waits_for_no_further_chunk() -> None:
    """One step of decodes alone is planned while its KV is on its way, then prompts go on."""
    driver = two()
    comes, stays = (driver.arrive(PROMPT, 30) for _ in range(2))
    run_until_tokens(driver, comes, 2, 0)
    run_until_tokens(driver, stays, 2, 1)
    prompt = driver.arrive(list(range(100)), 4)
    driver.move(sequence_id(prompt, 0), 1)
    driver.answer(1)  # its first chunk is planned
    driver.move(sequence_id(comes, 0), 1)
    driver.land_all()  # what went ahead
    driver.answer(0)
    assert home(driver, comes) == 1 and home_slot(driver, comes)
    counts = []
    for _ in range(2):
        driver.answer(1)
        counts.append(sorted(driver.workers[1].pending[0].batch.counts.tolist()))
    assert counts == [[1], [1, 16]]
    driver.land_all()
    driver.answer(1)
    assert driver.workers[1].pending[0].batch.counts.tolist() == [1, 1, 16]
    driver.settle()
    driver.check_nothing_left()

"""DistServe's batches of prompts: together up to the size of the device, longer ones alone."""

import msgspec

from daemon.core.values.actions import Submit
from daemon.core.values.events import WorkerReady
from daemon.scheduler.headroom import Headroom
from tests.core.driver import Driver, configured

SIZE = 24


def sized(size: int = SIZE) -> Driver:
    """An instance whose device is full with this many tokens; a step may have 64."""
    config = configured("distserve", max_batch_tokens=64, prefill_chunk=64, prefix_cache=False)
    (instance,) = config.instances
    own = msgspec.structs.replace(instance, budget_is_own=True, chunk_is_own=True)
    driver = Driver(msgspec.structs.replace(config, instances=(own,)), 64)
    driver.handle(WorkerReady(driver.now, 0, 64, 1, 0.001, forward_tokens=size))
    return driver


def batches(driver: Driver, *lengths: int) -> list[list[int]]:
    """The prompt tokens of each step, where these prompts wait behind one of five tokens."""
    driver.arrive([9] * 5, 1)
    for number, length in enumerate(lengths):
        driver.arrive([20 + number] * length, 1)
    driver.settle()
    driver.check_nothing_left()
    steps = [action for actions in driver.actions for action in actions]
    counts = [step.batch.counts.tolist() for step in steps if isinstance(step, Submit)]
    assert counts[0] == [5]
    return counts[1:]


def test_short_prompts_go_together_and_long_ones_alone_and_whole() -> None:
    assert batches(sized(), 10, 10, 10, 40, 10, 14) == [[10, 10], [10], [40], [10, 14]]


def test_one_beyond_the_budget_goes_in_pieces_of_it() -> None:
    assert batches(sized(), 100, 20) == [[64], [36], [20]]


def test_what_fits_the_next_plan_is_known_elsewhere() -> None:
    """Of prompts that wait, balancing moves those that the next plan leaves."""
    driver = sized()
    driver.arrive([9] * 5, 1)
    waiting = [driver.arrive([20 + number] * length, 1) for number, length in enumerate((40, 10))]
    scheduler = driver.core.instances[0].scheduler
    sequences = [driver.core.sequences[request * 128] for request in waiting]
    driver.answer()
    driver.settle()
    room = Headroom(scheduler)
    assert room.take(sequences[0]) and not room.take(sequences[1]), "the long one goes alone"
    room = Headroom(scheduler)
    assert room.take(sequences[1]) and not room.take(sequences[0])


def test_where_nobody_knows_the_size_a_step_has_as_many_tokens_as_under_other_policies() -> None:
    assert sized(0).core.instances[0].step_tokens == 64, "512 are more than it may have"

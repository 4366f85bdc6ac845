"""Clients that go away at every stage; nothing may stay behind."""

import random
from collections import Counter

from daemon.core.core import Core
from daemon.state.request import State, request_of
from tests.core.driver import Driver, configured
from tests.core.traffic import random_prompt
from tests.soak import tries

NUM_ABORTS = tries(1_000, 10_000)


def stages(core: Core) -> dict[int, str]:
    """Where each living sequence is."""
    found = {
        follower.id: "held back" for held in core.held_back.by_leader.values() for follower in held
    }
    for sequence in core.sequences.values():
        if sequence.state is State.RUNNING:
            scheduler = core.instances[sequence.instance].scheduler
            slots, slot = scheduler.slots, sequence.slot
            decoding = slots.computed[slot] >= slots.fed_until[slot]
            flying = len(scheduler.in_flight) and slots.last_step[slot] >= scheduler.step
            stage = "decode" if decoding else "prefill"
            found[sequence.id] = f"{stage}, in flight" if flying else stage
        else:
            found.setdefault(sequence.id, sequence.state.name.lower())
    return found


def test_aborts_at_every_stage_leave_nothing() -> None:
    chance = random.Random(5)
    driver = Driver(configured(instances=2, depth=2, max_running=4), 24)
    aborted: Counter[str] = Counter()
    while aborted.total() < NUM_ABORTS:
        del driver.events[:-1], driver.actions[:-1]
        driver.arrive(random_prompt(chance), chance.randint(1, 30), chance.choice([1, 1, 2, 4]))
        for _ in range(chance.randint(0, 3)):
            driver.answer(chance.randrange(2))
        driver.tick()
        where = stages(driver.core)
        if len(where) > 10:
            rare = min(where, key=lambda sequence: (aborted[where[sequence]], sequence))
            request = request_of(rare)
            aborted.update(at for one, at in where.items() if request_of(one) == request)
            driver.abort(request)
    driver.settle()
    driver.check_nothing_left()
    wanted = {"waiting", "held back", "prefill, in flight", "decode, in flight", "preempted"}
    assert wanted <= aborted.keys() and min(aborted[stage] for stage in wanted) >= 10, aborted
    assert not driver.core._requests and len(driver.core.held_back) == 0

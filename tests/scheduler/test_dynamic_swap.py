"""ALISE's Algorithm 2 by its text: who stays, who is offloaded, and who is uploaded."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.dynamic_swap import MOST_WAITING, job_limit
from daemon.scheduler.slots import SlotTable
from daemon.state.request import State
from daemon.state.sequence import Sequence, Where
from tests.core.driver import Driver, configured

BLOCK = 4

Job = tuple[int, int, bool]
"""(rank, blocks, whether it runs); jobs arrive in their order here."""


def standing(jobs: list[Job], num_blocks: int) -> tuple[list[int], list[int]]:
    """(jobs to offload, jobs to upload), by their numbers in `jobs`."""
    kv = KVCache(num_blocks, BLOCK, len(jobs), 10_000, False)
    slots, waiting = SlotTable(len(jobs)), list[Sequence]()
    number_of: dict[int, int] = {}
    for number, (rank, blocks, runs) in enumerate(jobs):
        member = Sequence(number, BLOCK * blocks, 10, 0, 0.0, number)
        member.rank = float(rank)
        if runs:
            number_of[slots.join(member, 0)] = number
        else:
            waiting.append(member)
    waiting.sort(key=lambda member: (member.rank, member.arrival))
    offloads, uploads = job_limit(slots, waiting, kv)
    return [number_of[slot] for slot in offloads], [member.id for member in uploads]


def test_jobs_within_the_limit_stay_or_come_and_those_beyond_go() -> None:
    """Ten blocks: jobs of ranks 0 to 3 fit, of which the second is not there; the last two go."""
    jobs = [(0, 3, True), (1, 2, False), (2, 2, True), (3, 3, True), (4, 2, True), (5, 1, True)]
    assert standing(jobs, 10) == ([5, 4], [1])


def test_a_resident_job_within_the_limit_is_not_offloaded() -> None:
    """As printed, Algorithm 2 would offload it: its `else` is that of two conditions."""
    assert standing([(0, 3, True), (1, 3, False)], 10) == ([], [1])


def test_a_queue_has_what_the_queues_before_it_have_left() -> None:
    """Queues by rank: the second has five blocks left of ten, whatever its jobs are beside."""
    jobs = [(0, 3, False), (0, 2, True), (1, 3, True), (1, 3, True), (2, 1, True)]
    assert standing(jobs, 10) == ([4, 3], [0])


def test_nothing_moves_where_nobody_waits() -> None:
    assert standing([(0, 9, True), (1, 9, True)], 10) == ([], [])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.booleans()), min_size=1),
    st.integers(6, 40),
)
def test_the_limit_is_a_place_in_the_order(jobs: list[Job], num_blocks: int) -> None:
    """Held against the loop over queues, with M as the memory that is left."""
    waits = [number for number, job in enumerate(jobs) if not job[2]]
    waits.sort(key=lambda number: (jobs[number][0], number))
    looked_at = set(waits[:MOST_WAITING])
    offloads, uploads = list[int](), list[int]()

    def queues() -> Iterator[list[int]]:
        for rank in range(5):
            yield [
                number
                for number, job in enumerate(jobs)
                if job[0] == rank and (job[2] or number in looked_at)
            ]

    limit, fits = num_blocks, True
    for queue in queues():
        sizes = np.cumsum([jobs[number][1] for number in queue])
        for number, size in zip(queue, sizes, strict=True):
            fits = fits and size <= limit
            if jobs[number][2] and not fits:
                offloads.insert(0, number)
            elif not jobs[number][2] and fits:
                uploads.append(number)
        limit -= int(sizes[-1]) if queue else 0
    if not waits:
        offloads = []
    assert standing(jobs, num_blocks) == (offloads, uploads)


def test_long_jobs_are_in_host_memory_before_short_ones_take_their_place() -> None:
    """Two long answers fill the pool; short ones come, for which one of them has to go."""
    config = configured("speculative", max_running=4, max_len=128, prefix_cache=False)
    driver = Driver(config, 24, num_host_blocks=100)
    long = [driver.arrive([number] * 30, 60) for number in (1, 2)]
    for request in long:
        driver.predict(request, 60)
    for _ in range(6):
        driver.answer()
    residency = driver.core.instances[0].scheduler.residency
    assert residency.mode == "dynamic" and not residency.space.pool.num_held, "nobody waits"
    for number in (3, 4, 5):
        driver.predict(driver.arrive([number] * 20, 4), 4)
    copied: set[Where] = set()
    for _ in range(4):
        driver.answer()
        driver.copied()
        copied |= {
            member.residence.where
            for member in driver.core.sequences.values()
            if member.state in (State.RUNNING, State.PREEMPTED)
        }
    assert copied & {Where.BOTH, Where.HOST}
    driver.settle()
    driver.check_nothing_left()

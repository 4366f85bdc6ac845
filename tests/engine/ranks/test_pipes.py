"""What travels between stages: states down, tokens up, in order, and nobody waits for ever."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from daemon.engine.layers.ranks import RankError
from daemon.engine.ranks.shared_memory import AREA_BYTES
from daemon.engine.ranks.stages import Stages
from daemon.protocol.worker import StagesWorked
from tests.hangs import HANG_S

SHORT_S = 0.05
NUM_TURNS, NAP_S = 50, 0.004


def on_stages(
    num_stages: int, work: Callable[[Stages], object], deadline_s: float = HANG_S
) -> list[object]:
    """The results of `work` on each rank, or what it raised."""
    memory = os.memfd_create("stages")
    ends = [Stages(memory, rank, [1] * num_stages, deadline_s) for rank in range(num_stages)]
    with ThreadPoolExecutor(num_stages) as pool:
        futures = [pool.submit(work, end) for end in ends]
        return [future.exception() or future.result() for future in futures]


def test_all_know_what_each_stage_computed() -> None:
    """Not the time in which it waited for another."""

    def work(links: Stages) -> StagesWorked:
        began_s = time.perf_counter()
        if links.is_last:
            links.receive()
        else:
            time.sleep(5 * NAP_S)
            links.send(torch.zeros(1, 3))
        links.stepped(time.perf_counter() - began_s)
        links.gather(torch.zeros(1, 1), [1, 1])  # all have said so
        return links.worked()

    last, first = on_stages(2, work)
    assert isinstance(last, StagesWorked) and isinstance(first, StagesWorked)
    assert last.computed_s == first.computed_s
    own, behind = last.computed_s
    assert own == first.steps_s >= 5 * NAP_S
    assert 0 <= behind < last.steps_s


def test_states_go_down_and_tokens_up() -> None:
    """More than a ring holds, of several types, before anybody answers. A CPU takes states in
    float32, in which it computes.
    """
    wide = AREA_BYTES // 4 // 10
    sent = [
        torch.randn(33, wide, generator=torch.Generator().manual_seed(1)),
        torch.ones(1, 3, dtype=torch.bfloat16),
        torch.zeros(0, 7),
    ]

    def work(links: Stages) -> list[torch.Tensor]:
        states = [links.receive() for _ in sent] if links.stage else sent
        if not links.is_last:
            for each in states:
                links.send(each)
            return [links.hear(2, 3), links.hear(1, 3)]
        links.tell(torch.arange(6).view(2, 3))
        links.tell(torch.tensor([[7, 8, 9]]))
        return states

    arrived, *told = on_stages(3, work)
    assert isinstance(arrived, list)
    for each, own in zip(arrived, sent, strict=True):
        assert each.dtype == torch.float32 and torch.equal(each, own.float())
    for heard in told:
        assert isinstance(heard, list) and [each.tolist() for each in heard] == [
            [[0, 1, 2], [3, 4, 5]],
            [[7, 8, 9]],
        ]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stage_that_is_late_or_gone_is_named(leaves: bool) -> None:
    def work(links: Stages) -> None:
        if links.stage:
            links.receive()
        elif leaves:
            links.close()

    found, _ = on_stages(2, work, HANG_S if leaves else SHORT_S)
    said = "rank 1 has ended" if leaves else f"rank 1 is late by more than {SHORT_S} s"
    assert isinstance(found, RankError) and str(found) == said


def test_a_ring_that_nobody_empties_is_late_too() -> None:
    def work(links: Stages) -> None:
        if not links.stage:
            links.send(torch.zeros(2, AREA_BYTES // 4))

    _, found = on_stages(2, work, SHORT_S)
    assert isinstance(found, RankError) and "rank 0 is late" in str(found)


def test_stages_that_wait_for_each_other_are_found_at_once() -> None:
    """Each does what it alone has decided; the deadline is far."""

    def work(links: Stages) -> None:
        try:
            if links.is_last:
                links.gather(torch.zeros(1, 1), [1, 1, 1])
            else:
                links.hear(1, 1)
        finally:
            links.close()

    found = on_stages(3, work, 10 * HANG_S)
    stuck = [str(each) for each in found if "wait for each other" in str(each)]
    assert stuck and all(isinstance(each, RankError) for each in found)
    assert {
        "rank 0 and this one wait for each other",
        "rank 1 and this one wait for each other",
    } >= {*stuck}


def test_a_stage_that_is_slow_is_not_taken_for_one_that_waits() -> None:
    """Each waits for the other in turn, longer than it naps."""

    def work(links: Stages) -> int:
        heard = 0
        for number in range(NUM_TURNS):
            time.sleep(NAP_S)
            if links.is_last:
                heard += int(links.receive()[0, 0])
                links.tell(torch.tensor([[number]]))
            else:
                links.send(torch.full((1, 1), float(number)))
                time.sleep(NAP_S)
                heard += int(links.hear(1, 1)[0, 0])
        return heard

    assert on_stages(2, work) == [sum(range(NUM_TURNS))] * 2

"""Turns: so many at once, owner by owner, and whoever leaves takes none with them."""

import asyncio
import random

import pytest

from daemon.api.replies.errors import ApiError
from daemon.api.sandbox.fair_slots import FairSlots
from tests.hangs import HANG_S


async def test_one_owner_s_many_leave_room_for_another_s_first() -> None:
    slots = FairSlots(3, 100)
    many = [asyncio.create_task(slots.acquire("many")) for _ in range(20)]
    await asyncio.sleep(0)
    assert sum(task.done() for task in many) == 2
    async with asyncio.timeout(HANG_S):
        await slots.acquire("other")
    later = [asyncio.create_task(slots.acquire("other")) for _ in range(2)]
    slots.release("many")
    await asyncio.sleep(0)
    assert later[0].done() != (sum(task.done() for task in many) == 3)  # it is one or the other
    for task in (*many, *later):
        task.cancel()
    await asyncio.gather(*many, *later, return_exceptions=True)


async def test_too_many_are_refused() -> None:
    slots = FairSlots(2, 1)
    await slots.acquire("a")
    waiting = asyncio.create_task(slots.acquire("a"))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as raised:
        await slots.acquire("a")
    assert raised.value.status == 503
    await slots.acquire("b")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not slots._waiting


@pytest.mark.parametrize("seed", range(8))
async def test_whoever_leaves_at_whatever_moment(seed: int) -> None:
    slots, chance, num_inside = FairSlots(3, 1000), random.Random(seed), 0

    async def visit(owner: str) -> None:
        nonlocal num_inside
        await slots.acquire(owner)
        num_inside += 1
        assert num_inside <= 3
        try:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            num_inside -= 1
            slots.release(owner)

    tasks = [asyncio.create_task(visit(chance.choice("abc"))) for _ in range(200)]
    while not all(task.done() for task in tasks):
        chance.choice(tasks).cancel() if chance.random() < 0.5 else None
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not slots._waiting
    assert not slots._taken.total()
    for task in tasks:
        assert task.cancelled() or task.exception() is None

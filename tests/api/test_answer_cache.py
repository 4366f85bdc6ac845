"""What is asked for once: nobody waits behind another's questions, nor for those who have left."""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from daemon.api.sandbox.answer_cache import AnswerCache
from tests.hangs import HANG_S

Ask = Callable[[], Coroutine[Any, Any, str]]


def saying(text: str, when: asyncio.Event | None = None, cancelled: list[str] | None = None) -> Ask:
    """Says it, once the event has come."""

    async def ask() -> str:
        try:
            if when is not None:
                await when.wait()
        except asyncio.CancelledError:
            if cancelled is not None:
                cancelled.append(text)
            raise
        return text

    return ask


async def test_one_owner_s_question_waits_for_no_other_owner_s() -> None:
    cache, never = AnswerCache[str](2, lambda _said: 60.0), asyncio.Event()
    stuck = asyncio.create_task(cache.get(b"same", "a", saying("a's", never)))
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG_S):
        assert await cache.get(b"same", "b", saying("b's")) == "b's"
        assert await cache.get(b"same", "c", saying("c's")) == "b's"
    never.set()
    assert await stuck == "a's"
    assert not cache._questions


async def test_it_is_asked_no_further_once_all_have_left() -> None:
    cache, never = AnswerCache[str](2, lambda _said: 60.0), asyncio.Event()
    cancelled: list[str] = []
    ask = saying("first", never, cancelled)
    askers = [asyncio.create_task(cache.get(b"x", "a", ask)) for _ in range(2)]
    await asyncio.sleep(0)
    askers[0].cancel()
    await asyncio.sleep(0)
    assert not cancelled
    askers[1].cancel()
    await asyncio.sleep(0)
    # Whoever comes in this moment does not wait for what is being given up.
    async with asyncio.timeout(HANG_S):
        assert await cache.get(b"x", "a", saying("second")) == "second"
    assert cancelled == ["first"]
    await asyncio.gather(*askers, return_exceptions=True)
    assert not cache._questions


async def test_an_answer_is_kept_for_as_long_as_it_is_worth() -> None:
    cache = AnswerCache[str](2, {"good": inf, "bad": 1e-9, "none": 0.0}.__getitem__)
    for said, again in {"good": "good", "bad": "none", "none": "good"}.items():
        text = said.encode()
        assert await cache.get(text, "a", saying(said)) == said
        await asyncio.sleep(0.001)
        assert await cache.get(text, "b", saying(again)) == again
    assert len(cache._known) == 2

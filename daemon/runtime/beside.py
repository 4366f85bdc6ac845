"""Blocking work in threads that nobody has to wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The result of blocking work, without making a daemon that is told to stop wait for it.

    An executor's threads are joined at exit; this one is left behind, and a converter that it
    started dies with it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def target() -> None:
        result, fault = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the result
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=target, name="beside", daemon=True).start()
    return await done


def heard(hear: Callable[[A], None]) -> Callable[[A], None]:
    """What a thread may call so that the running loop calls `hear`; nothing once that is closed."""
    loop = asyncio.get_running_loop()

    def say(what: A) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(hear, what)

    return say


async def unless(
    stopped: asyncio.Event,
    work: Coroutine[Any, Any, T],
    every_s: float,
    meanwhile: Callable[[], None],
) -> T | None:
    """What comes of work; None once `stopped` is set, which waits for nobody.

    `meanwhile` is called every so often.
    """
    stopping, working = asyncio.ensure_future(stopped.wait()), asyncio.ensure_future(work)
    either, first = {stopping, working}, asyncio.FIRST_COMPLETED
    while not (await asyncio.wait(either, timeout=every_s, return_when=first))[0]:
        meanwhile()
    stopping.cancel()
    if not stopped.is_set():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)  # a fault that nobody asks about
    return None

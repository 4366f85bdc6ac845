"""Blocking work in threads that need not be waited for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The result of blocking work, without delaying a daemon that is told to stop.

    An executor's threads are joined at exit; this thread is left behind, and a converter that it
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
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the result not awaited
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=target, name="blocking", daemon=True).start()
    return await done


def on_loop(callback: Callable[[A], None]) -> Callable[[A], None]:
    """A function for other threads: it has the running loop call `callback`, unless
    that is closed.
    """
    loop = asyncio.get_running_loop()

    def call(what: A) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, what)

    return call

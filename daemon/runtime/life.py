"""When the daemon stops and why, and the tasks that run until then."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from daemon.base import notify
from daemon.runtime.threads import in_thread

T = TypeVar("T")
log = logging.getLogger(__name__)

PREPARING_S = 60.0
"""How often a service manager hears that blocking work goes on: a conversion may take an hour."""


async def feed_watchdog(stuck: Callable[[], str]) -> None:
    """Tell the service manager, twice in its interval, that the daemon makes progress.

    `stuck` gives the reason why it does not, or an empty text; then the manager is left to kill
    the daemon and to start it again. Returns at once where no watchdog was asked for.
    """
    interval_s = notify.watchdog_s() / 2
    said = ""
    while interval_s:
        why = stuck()
        if not why:
            notify.alive()
        elif why != said:
            log.error("the watchdog is not fed: %s", why)
        said = why
        await asyncio.sleep(interval_s)


class Life:
    """One daemon's life: it ends with a signal or a hopeless fault."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()  # do not wait for answers either
        self.fault = ""
        self._tasks: set[asyncio.Task[None]] = set()

    def told_to_stop(self) -> None:
        """The first signal drains, a second one does not wait for answers."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def hopeless(self, why: str) -> None:
        """Nothing can be served any more: stop, and let the service manager decide."""
        self.fault = why
        self.stop.set()
        self.hurry.set()

    def take_signals(self, reload: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Stop at SIGTERM and SIGINT; at SIGHUP `reload`, where there is a file to read again.

        Without a file SIGHUP means that the terminal was closed: then stop, unless the daemon was
        started with `nohup`.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.told_to_stop)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda: self.spawn(reload()))
        elif signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.told_to_stop)

    async def unless_stopped(
        self, work: Callable[[], T], meanwhile: Callable[[], None]
    ) -> T | None:
        """The result of blocking work; None once the daemon is told to stop.

        `meanwhile` is called at intervals.
        """
        stopping = asyncio.ensure_future(self.stop.wait())
        working = asyncio.ensure_future(in_thread(work))
        either, first = {stopping, working}, asyncio.FIRST_COMPLETED
        while not (await asyncio.wait(either, timeout=PREPARING_S, return_when=first))[0]:
            meanwhile()
        stopping.cancel()
        if not self.stop.is_set():
            return working.result()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)  # its fault is of no interest
        return None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work as a task of its own; a failure in it ends the daemon instead of hiding."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.add(task)

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())
            self.hopeless(f"internal error: {task.exception()}")

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stop the daemon: a Core that handled half of an event must not go on; requests would hang
        unseen.
        """
        loop.default_exception_handler(context)
        if "handle" in context:
            self.hopeless(f"internal error: {context.get('exception') or context['message']}")

"""An operator's orders to a running daemon: each is carried out whole, or refused with a reason."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daemon import logs
from daemon.config.load import ConfigError, Loaded
from daemon.config.reload import change
from daemon.control.server import RefusalError
from daemon.nearest import unknown
from daemon.protocol.api import Access, Settings
from daemon.protocol.control import Reloaded
from daemon.runtime import notify
from daemon.runtime.runtime import Runtime
from daemon.runtime.status import DaemonStatus, Parts
from daemon.runtime.threads import in_thread

log = logging.getLogger(__name__)


class Operations:
    """All that may change while requests run; `phase` is what the daemon's status is now.

    `read` reads the configuration anew; it may raise ConfigError.
    """

    def __init__(
        self, parts: Parts, read: Callable[[], Loaded], phase: Callable[[], DaemonStatus]
    ) -> None:
        self._parts = parts
        self._read = read
        self._phase = phase
        self._reloading = asyncio.Lock()

    def choose_policy(self, policy: str, instance: str = "") -> None:
        """Rank sequences by another of POLICIES: those of one instance, by its name, or all.

        Raises RefusalError before there is a Core, and for an instance that nobody knows.
        """
        runtime = self._runtime("no policy can be chosen yet")
        names = [one.name for one in runtime.core.config.instances]
        if instance and instance not in names:
            raise RefusalError(unknown("instance", instance, names))
        with self._whole():
            runtime.choose_policy(policy, names.index(instance) if instance else -1)

    def drain(self) -> None:
        """Take no new requests, finish those that are here, and stay. Raises RefusalError."""
        runtime = self._runtime("there is nothing to drain yet")
        with self._whole():
            runtime.drain()
        text = "draining: requests are refused until llmd ctl resume"
        self._now(text, text)

    def resume(self) -> None:
        """Take requests again. Raises RefusalError."""
        runtime = self._runtime("there is nothing to resume yet")
        with self._whole():
            runtime.resume()
        self._now("requests are taken again", self._phase().serves)
        if not self._phase().started:
            self._phase().announce()

    async def reload(self) -> Reloaded:
        """Read the configuration again and take what can change. Raises RefusalError.

        A broken one changes nothing, and neither do values that need a restart.
        """
        if not self._parts.loaded.file:
            raise RefusalError("this daemon was started without --config: there is no file to read")
        async with self._reloading:
            self._check_not_stopping()
            if self._phase().started:
                notify.reloading()
            try:
                return self._take(await in_thread(self._read))
            except ConfigError as error:
                text = f"the configuration stays as it was: {error}"
                log.error("%s", text)
                raise RefusalError(text) from error
            finally:
                if self._phase().started and not self._parts.life.stop.is_set():
                    notify.ready(self._phase().serves)

    async def hang_up(self) -> None:
        """SIGHUP: reload; the log says what came of it."""
        try:
            await self.reload()
        except RefusalError as error:
            if not isinstance(error.__cause__, ConfigError):  # that is in the log already
                log.error("%s", error)

    def tell_settings(self) -> None:
        """Tell the API process who may ask, and what else may change."""
        config, link = self._parts.config, self._parts.link
        server = config.server
        link.send(Access(config.key, server.cors_origins, server.allowed_hosts))
        link.send(Settings(server.keepalive_s, config.daemon.log_level))

    def _take(self, read: Loaded) -> Reloaded:
        found = change(self._parts.loaded, read)
        self._parts.loaded = found.loaded
        with self._whole():
            self._phase().reconfigured(set(found.changed))
        logs.set_level(found.loaded.config.daemon.log_level)
        self.tell_settings()
        log.info("read %s again; changed: %s", found.loaded.file, _listed(found.changed))
        if found.needs_restart:
            log.warning("needs a restart to change: %s", _listed(found.needs_restart))
        return Reloaded(found.loaded.file, found.changed, found.needs_restart)

    def _runtime(self, too_early: str) -> Runtime:
        self._check_not_stopping()
        return self._phase().runtime(too_early)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A Core that takes an order by halves must not go on."""
        try:
            yield
        except Exception as error:
            self._parts.life.hopeless(f"internal error: {error}")
            raise

    def _check_not_stopping(self) -> None:
        if self._parts.life.stop.is_set():
            raise RefusalError("this daemon is stopping")

    def _now(self, event: str, status: str) -> None:
        log.info("%s", event)
        notify.status(status)
        self._phase().tell()


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "nothing"

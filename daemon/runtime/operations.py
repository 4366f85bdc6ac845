"""An operator's orders to a running daemon: each is carried out whole, or refused with a reason."""

import asyncio
import logging
from collections.abc import Callable

from daemon import logs
from daemon.config.load import ConfigError, Loaded
from daemon.config.reload import change
from daemon.config.schema import Config
from daemon.control.server import RefusalError
from daemon.protocol.api import Access, Settings
from daemon.protocol.control import Reloaded
from daemon.runtime import notify
from daemon.runtime.api_link import ApiLink
from daemon.runtime.beside import in_thread
from daemon.runtime.runtime import Runtime
from daemon.runtime.status import DaemonStatus

log = logging.getLogger(__name__)


class Operations:
    """The configuration as it is now, and all that may change while requests run.

    `read` reads the configuration anew; it may raise ConfigError. `hopeless(why)` is called where
    a Core took an order by halves, and must not go on.
    """

    def __init__(
        self,
        loaded: Loaded,
        read: Callable[[], Loaded],
        status: DaemonStatus,
        hopeless: Callable[[str], None],
    ) -> None:
        self.runtime: Runtime | None = None  # once the model is known
        self.api: ApiLink | None = None  # the living API process
        self.stopping = False
        self._loaded = loaded
        self._read = read
        self._status = status
        self._hopeless = hopeless
        self._reloading = asyncio.Lock()

    @property
    def config(self) -> Config:
        """What the daemon runs with."""
        return self._loaded.config

    @property
    def has_file(self) -> bool:
        """Whether there is a configuration file that can be read again."""
        return bool(self._loaded.file)

    def choose_policy(self, policy: str) -> None:
        """Rank sequences by another of POLICIES. Raises RefusalError before there is a Core."""
        self._tell_core(lambda core: core.choose_policy(policy), "no policy can be chosen yet")
        log.info("the policy is %s now", policy)

    def drain(self) -> None:
        """Take no new requests, finish those that are here, and stay. Raises RefusalError."""
        self._tell_core(Runtime.drain, "there is nothing to drain yet")
        self._status.draining = True
        text = "draining: requests are refused until llmd ctl resume"
        self._now(text, text)

    def resume(self) -> None:
        """Take requests again. Raises RefusalError."""
        self._tell_core(Runtime.resume, "there is nothing to resume yet")
        self._status.draining = False
        self._now("requests are taken again", self._status.serves)

    async def reload(self) -> Reloaded:
        """Read the configuration again and take what can change. Raises RefusalError.

        A broken one changes nothing, and neither do values that need a restart.
        """
        if not self.has_file:
            raise RefusalError("this daemon was started without --config: there is no file to read")
        async with self._reloading:
            self._check_not_stopping()
            if self._status.started:
                notify.reloading()
            try:
                return self._take(await in_thread(self._read))
            except ConfigError as error:
                text = f"the configuration stays as it was: {error}"
                log.error("%s", text)
                raise RefusalError(text) from error
            finally:
                if self._status.started and not self.stopping:
                    notify.ready(self._status.serves)

    async def hang_up(self) -> None:
        """SIGHUP: reload; the log says what came of it."""
        try:
            await self.reload()
        except RefusalError as error:
            if not isinstance(error.__cause__, ConfigError):  # that is in the log already
                log.error("%s", error)

    def introduce(self, api: ApiLink) -> None:
        """Tell a new API process all that it must know."""
        self.api = api
        self._tell_settings()
        api.send_serving(self._status.serving())

    def tell_serving(self) -> None:
        """Tell the API process what is served now."""
        if self.api is not None:
            self.api.send_serving(self._status.serving())

    def _take(self, read: Loaded) -> Reloaded:
        found = change(self._loaded, read)
        self._loaded = found.loaded
        scheduler, changed = self.config.scheduler, set(found.changed)
        self._status.config = self.config
        if self.runtime is not None:  # else it will be built from this configuration
            if "scheduler.policy" in changed:
                self.choose_policy(scheduler.policy)
            if changed & {"scheduler.max_waiting", "scheduler.starve_s"}:
                self._tell_core(lambda core: core.reconfigure(scheduler))
        logs.set_level(self.config.daemon.log_level)
        self._tell_settings()
        log.info("read %s again; changed: %s", self._loaded.file, _listed(found.changed))
        if found.needs_restart:
            log.warning("needs a restart to change: %s", _listed(found.needs_restart))
        return Reloaded(self._loaded.file, found.changed, found.needs_restart)

    def _tell_settings(self) -> None:
        if self.api is None:
            return
        server = self.config.server
        self.api.send_access(Access(self.config.key, server.cors_origins, server.allowed_hosts))
        self.api.send_settings(Settings(server.keepalive_s, self.config.daemon.log_level))

    def _tell_core(self, order: Callable[[Runtime], None], too_early: str = "") -> None:
        self._check_not_stopping()
        if self.runtime is None:
            raise RefusalError(f"{too_early}: {self._status.sentence}")
        try:
            order(self.runtime)
        except Exception as error:
            self._hopeless(f"internal error: {error}")
            raise

    def _check_not_stopping(self) -> None:
        if self.stopping:
            raise RefusalError("this daemon is stopping")

    def _now(self, event: str, status: str) -> None:
        log.info("%s", event)
        notify.status(status)
        self.tell_serving()


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "nothing"

"""An operator's orders to a running daemon: each is carried out whole, or refused with a reason."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daemon.base import logs, notify
from daemon.base.nearest import unknown
from daemon.config.load import ConfigError, Loaded
from daemon.config.reload import change
from daemon.control.orders import RefusalError
from daemon.core.values.limits import limits_of
from daemon.protocol.api import Access, Settings
from daemon.protocol.control import Capped, Flipped, Migrating, Reloaded
from daemon.runtime import order_checks
from daemon.runtime.runtime import OrderedFlip, Runtime
from daemon.runtime.status import DaemonStatus, Parts
from daemon.runtime.threads import in_thread
from daemon.state.role import WATCHED

log = logging.getLogger(__name__)


class Operations:
    """Everything that may change while requests run; `phase` returns the daemon's current status.

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

        Raises RefusalError before there is a Core, and for an unknown instance.
        """
        runtime = self._runtime("no policy can be chosen yet")
        index = _index_of(instance, runtime)
        with self._whole():
            runtime.choose_policy(policy, index)

    def choose_budget(self, tokens: int, instance: str = "") -> None:
        """Fill steps up to `tokens` (0: as configured): those of one instance, by its name, or all.

        Raises RefusalError before there is a Core, for an unknown instance, and above a budget for
        which a worker has memory.
        """
        runtime = self._runtime("no budget can be chosen yet")
        index, config = _index_of(instance, runtime), runtime.core.config
        for number, own in enumerate(config.instances):
            most = limits_of(own, config).max_batch_tokens
            if index in (-1, number) and tokens > most:
                raise RefusalError(f"a step of {own.name} has {most} tokens at most, as configured")
        with self._whole():
            runtime.choose_budget(tokens, index)

    def choose_placement(self, placement: str) -> None:
        """Choose instances by another of PLACEMENTS. Raises RefusalError before there is a Core."""
        runtime = self._runtime("no placement can be chosen yet")
        with self._whole():
            runtime.choose_placement(placement)

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

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        """Give an instance another role. Raises RefusalError.

        Waits up to `wait_s` for the first work that only the new role gets; after that `flip_s` is
        -1. A flip to the role that it already has pins it there.
        """
        runtime = self._runtime("no role can be chosen yet")
        snapshot = self._phase().snapshot()
        index, chosen = order_checks.index_of(instance, snapshot), order_checks.role_of(role)
        was = snapshot.instances[index].role
        if was == chosen:
            with self._whole():  # it is pinned from now on
                runtime.flip(index, chosen)
            return Flipped(
                number=0,
                instance=instance,
                was=was,
                role=chosen,
                flip_s=0.0,
                clear_s=0.0,
                idle=False,
            )
        with self._whole():
            flip = runtime.flip(index, chosen)
        log.info("%s was %s and is %s now", instance, was, chosen)
        return await self._flip_done(flip, wait_s)

    async def cap(self, instance: str, watts: float | None) -> Capped:
        """Limit the power of an instance's card, None: as its role asks. Raises RefusalError."""
        self._check_not_stopping()
        power = self._phase().power("no power can be limited yet")
        index = order_checks.index_of(instance, self._phase().snapshot())
        capped = await power.pin(index, instance, watts)
        log.info(
            "power of %s: %g W, %s", instance, capped.wish_watts, "pinned" if watts else "auto"
        )
        return capped

    def migrate(self, sequence: int, instance: str) -> Migrating:
        """Go on with a sequence on another instance. Raises RefusalError."""
        runtime = self._runtime("nothing can be moved yet")
        snapshot = self._phase().snapshot()
        index = order_checks.index_of(instance, snapshot)
        source = order_checks.check_migration(
            runtime.core, sequence, snapshot.instances[index], index
        )
        with self._whole():
            runtime.migrate(sequence, index)
        return Migrating(sequence, snapshot.instances[source].name, instance)

    def drain_instance(self, instance: str) -> None:
        """Move everything away from an instance, and leave it idle. Raises RefusalError."""
        runtime = self._runtime("there is nothing to drain yet")
        snapshot = self._phase().snapshot()
        index = order_checks.index_of(instance, snapshot)
        order_checks.check_drain(index, snapshot)
        with self._whole():
            runtime.drain_instance(index)
        log.info("%s is drained until llmd ctl resume %s", instance, instance)

    def resume_instance(self, instance: str) -> None:
        """Use an instance again. Raises RefusalError."""
        runtime = self._runtime("there is nothing to resume yet")
        snapshot = self._phase().snapshot()
        index = order_checks.index_of(instance, snapshot)
        with self._whole():
            runtime.resume_instance(index)
        if snapshot.instances[index].drained:
            log.info("%s is used again", instance)

    def choose_roles(self, mode: str) -> None:
        """Turn automatic roles on or off. Raises RefusalError."""
        runtime = self._runtime("no roles can be chosen yet")
        with self._whole():
            runtime.choose_roles(mode)
        log.info("roles are %s now", "chosen by the load" if mode in WATCHED else "as configured")

    async def reload(self) -> Reloaded:
        """Read the configuration again and apply what can change. Raises RefusalError.

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
        """SIGHUP: reload; the log says the result."""
        try:
            await self.reload()
        except RefusalError as error:
            if not isinstance(error.__cause__, ConfigError):  # that is in the log already
                log.error("%s", error)

    def tell_settings(self) -> None:
        """Send the API process the keys that may ask, and the other settings that may change."""
        config, link = self._parts.config, self._parts.link
        server = config.server
        link.send(Access(config.key, server.cors_origins, server.allowed_hosts))
        link.send(Settings(server.keepalive_s, config.daemon.log_level))

    async def _flip_done(self, flip: OrderedFlip, wait_s: float) -> Flipped:
        """A flip's progress, once its first work was sent or there is none."""
        before = order_checks.flip_of(flip.number, self._phase().snapshot())
        waits = (flip.shown.wait(), self._parts.life.stop.wait())
        either = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in either:
            wait.cancel()
        flips = self._phase().snapshot().flips
        return order_checks.flipped(
            next((later for later in flips if later.number == flip.number), before)
        )

    def _take(self, read: Loaded) -> Reloaded:
        for note in read.notes:
            log.warning("%s", note)
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
        """End the daemon if the Core fails halfway through an order."""
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


def _index_of(instance: str, runtime: Runtime) -> int:
    """The index of an instance by its name, empty: -1, all of them. Raises RefusalError."""
    names = [instance_config.name for instance_config in runtime.core.config.instances]
    if instance and instance not in names:
        raise RefusalError(unknown("instance", instance, names))
    return names.index(instance) if instance else -1


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "nothing"

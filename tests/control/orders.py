"""An operator's orders, written down instead of carried out."""

from collections.abc import Callable

from daemon.protocol.control import Reloaded

RELOADED = Reloaded("llmd.toml", ("daemon.drain_s",), ("server.port",))


class Written:
    """What was ordered, in order; `fail` is called first and may raise."""

    def __init__(self, fail: Callable[[], None] = lambda: None) -> None:
        self.orders: list[str] = []
        self._fail = fail

    def choose_policy(self, policy: str, instance: str = "") -> None:
        self._note(f"{policy} on {instance}" if instance else policy)

    async def reload(self) -> Reloaded:
        self._note("reload")
        return RELOADED

    def drain(self) -> None:
        self._note("drain")

    def resume(self) -> None:
        self._note("resume")

    def _note(self, order: str) -> None:
        self._fail()
        self.orders.append(order)

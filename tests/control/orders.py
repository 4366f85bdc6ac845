"""An operator's orders, written down instead of carried out."""

from collections.abc import Callable

from daemon.protocol.control import Capped, Flipped, Migrating, Reloaded, Role

RELOADED = Reloaded("llmd.toml", ("daemon.drain_s",), ("server.port",))

FLIPPED = Flipped(3, "gpu0", Role.MIXED, Role.PREFILL, 0.25, -1.0, False)


CAPPED = Capped("gpu0", 60.0, 100.0, 150.0, 100.0, 350.0)


class Written:
    """The orders, in sequence; `fail` is called first and may raise."""

    def __init__(self, fail: Callable[[], None] = lambda: None) -> None:
        self.orders: list[str] = []
        self._fail = fail

    def choose_policy(self, policy: str, instance: str = "") -> None:
        self._note(f"{policy} on {instance}" if instance else policy)

    def choose_budget(self, tokens: int, instance: str = "") -> None:
        self._note(f"budget {tokens} on {instance}" if instance else f"budget {tokens}")

    def choose_placement(self, placement: str) -> None:
        self._note(f"place by {placement}")

    async def reload(self) -> Reloaded:
        self._note("reload")
        return RELOADED

    def drain(self) -> None:
        self._note("drain")

    def resume(self) -> None:
        self._note("resume")

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        self._note(f"flip {instance} to {role}")
        return FLIPPED

    async def cap(self, instance: str, watts: float | None) -> Capped:
        self._note(f"cap {instance} at {watts}")
        return CAPPED

    def migrate(self, sequence: int, instance: str) -> Migrating:
        self._note(f"migrate {sequence} to {instance}")
        return Migrating(sequence, "gpu1", instance)

    def choose_roles(self, mode: str) -> None:
        self._note(f"roles {mode}")

    def drain_instance(self, instance: str) -> None:
        self._note(f"drain {instance}")

    def resume_instance(self, instance: str) -> None:
        self._note(f"resume {instance}")

    def _note(self, order: str) -> None:
        self._fail()
        self.orders.append(order)

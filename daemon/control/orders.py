"""An operator's orders to a running daemon over the control socket."""

from typing import Protocol

from daemon.protocol.control import Capped, Flipped, Migrating, Reloaded


class Orders(Protocol):
    """Carries out orders, on the event loop. Each one is done whole or raises RefusalError."""

    def choose_policy(self, policy: str, instance: str = "") -> None:
        """Change the policy of one instance ("": of all)."""

    def choose_placement(self, placement: str) -> None:
        """Change the placement policy."""

    async def reload(self) -> Reloaded:
        """Read the configuration again and apply what can change."""

    def drain(self) -> None:
        """Take no new requests; present ones finish, and the daemon stays."""

    def resume(self) -> None:
        """Take requests again."""

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        """Give an instance another role; wait `wait_s` at most for the new role's first work."""

    async def cap(self, instance: str, watts: float | None) -> Capped:
        """Limit the power of an instance's card; None: as its role asks."""

    def migrate(self, sequence: int, instance: str) -> Migrating:
        """Migrate a sequence to another instance."""

    def choose_roles(self, mode: str) -> None:
        """Turn automatic roles on ("auto") or off ("mixed")."""

    def drain_instance(self, instance: str) -> None:
        """Migrate everything away from an instance, and leave it idle."""

    def resume_instance(self, instance: str) -> None:
        """Use an instance again."""

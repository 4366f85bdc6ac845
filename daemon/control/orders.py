"""What an operator may do to a running daemon over the control socket."""

from typing import Protocol

from daemon.protocol.control import Capped, Flipped, Migrating, Reloaded


class Orders(Protocol):
    """Carries out orders, on the event loop. Each is done whole or raises RefusalError."""

    def choose_policy(self, policy: str, instance: str = "") -> None:
        """Rank the sequences of one instance ("": of all) by another of POLICIES from now on."""

    def choose_placement(self, placement: str) -> None:
        """Choose the instance of each sequence by another of PLACEMENTS from now on."""

    async def reload(self) -> Reloaded:
        """Read the configuration again and take what can change."""

    def drain(self) -> None:
        """Take no new requests; those that are here finish, and the daemon stays."""

    def resume(self) -> None:
        """Take requests again."""

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        """Give an instance another role; wait so long for the first work of the new one."""

    async def cap(self, instance: str, watts: float | None) -> Capped:
        """Limit the power of an instance's card; None: as its role asks."""

    def migrate(self, sequence: int, instance: str) -> Migrating:
        """Go on with a sequence on another instance."""

    def choose_roles(self, mode: str) -> None:
        """Have the watcher give instances their roles ("auto"), or nobody ("mixed")."""

    def drain_instance(self, instance: str) -> None:
        """Move everything away from an instance, and leave it idle."""

    def resume_instance(self, instance: str) -> None:
        """Use an instance again."""

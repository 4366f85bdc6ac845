"""Leases of power limits by connection and card, and their highest; pure."""


class PowerLeases:
    """Wishes for cards' limits in watts, by connection. The highest wish counts."""

    def __init__(self) -> None:
        self._watts: dict[str, dict[int, float]] = {}

    def put(self, connection: int, device: str, watts: float | None) -> None:
        """Replace a connection's lease of a card; None: end it."""
        if watts is not None:
            self._watts.setdefault(device, {})[connection] = watts
        elif device in self._watts:
            self._watts[device].pop(connection, None)
            if not self._watts[device]:
                del self._watts[device]

    def held(self, connection: int, device: str) -> float | None:
        """A connection's lease of a card, in watts."""
        return self._watts.get(device, {}).get(connection)

    def highest(self, device: str) -> float | None:
        """The highest lease of a card, in watts; None: there is none."""
        return max(self._watts.get(device, {}).values(), default=None)

    def drop(self, connection: int) -> list[str]:
        """End all leases of a connection; return its cards."""
        devices = [device for device, held in self._watts.items() if connection in held]
        for device in devices:
            self.put(connection, device, None)
        return devices

    def clear(self) -> None:
        """End all leases."""
        self._watts.clear()


def clamped_mw(watts: float, min_mw: int, max_mw: int) -> int:
    """A finite number of watts as milliwatts that the card can be set to."""
    return max(min_mw, round(1000 * min(watts, max_mw / 1000)))

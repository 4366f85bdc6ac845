"""A quota as a token bucket: so much a minute, a minute's worth at once, and debts."""

MINUTE_S = 60.0
_ROUNDING = 1e-9


class Bucket:
    """Holds up to a minute's allowance and fills evenly. The caller says what time it is.

    What something costs is often known only afterwards. So it may be charged for at any time, and
    the level may fall below zero: then nothing more is let in until it has risen again.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        """`per_minute` > 0; full at first."""
        self._per_minute = per_minute
        self._level = per_minute
        self._at_s = now

    def set_rate(self, per_minute: float, now: float) -> None:
        """Another allowance from now on; what was used or owed stays so."""
        used = self._per_minute - self.level(now)
        self._per_minute = per_minute
        self._level = per_minute - used

    def level(self, now: float) -> float:
        """What may be used at once; negative: what is owed."""
        if now > self._at_s:
            filled = (now - self._at_s) * self._per_minute / MINUTE_S
            self._level = min(self._per_minute, self._level + filled)
            self._at_s = now
        return self._level

    def charge(self, amount: float, now: float) -> None:
        """Use so much, whether it is there or not."""
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until the level is at least `amount` <= per minute, if nothing else is charged;
        0: it is now.
        """
        missing = amount - self.level(now)
        # Whoever waited exactly so long must not miss it by a rounding.
        return missing * MINUTE_S / self._per_minute if missing > _ROUNDING * amount else 0.0

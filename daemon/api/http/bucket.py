"""A quota as a token bucket: an amount a minute, a minute's worth in a burst, and debts."""

MINUTE_S = 60.0
_ROUNDING = 1e-9


class Bucket:
    """A bucket that holds up to a minute's allowance and fills evenly. The caller gives the time.

    A cost is often known only afterwards. So a charge is possible at any time and may take the
    level below zero; nothing more is admitted until it has risen again.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        """`per_minute` > 0; full at first."""
        self._per_minute = per_minute
        self._level = per_minute
        self._at_s = now

    def set_rate(self, per_minute: float, now: float) -> None:
        """Change the allowance; the used or owed amount stays."""
        used = self._per_minute - self.level(now)
        self._per_minute = per_minute
        self._level = per_minute - used

    def level(self, now: float) -> float:
        """The amount available now; negative: a debt."""
        if now > self._at_s:
            filled = (now - self._at_s) * self._per_minute / MINUTE_S
            self._level = min(self._per_minute, self._level + filled)
            self._at_s = now
        return self._level

    def charge(self, amount: float, now: float) -> None:
        """Use an amount, whether it is available or not."""
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until the level is at least `amount` <= per minute, if nothing else is charged;
        0: it is now.
        """
        missing = amount - self.level(now)
        # A caller that waited exactly this long must not miss it by a rounding.
        return missing * MINUTE_S / self._per_minute if missing > _ROUNDING * amount else 0.0

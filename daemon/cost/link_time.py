"""Link times: seconds for blocks from one instance's pool to another's, learned from transfers.

A line through (blocks, seconds), fitted by least squares over samples that fade: its start is the
link's latency, its slope a block's time.
"""

FADE = 0.95
"""The factor by which older samples lose weight with each new one."""


class LinkTime:
    """The expected time of a transfer over one link."""

    def __init__(self) -> None:
        self._weight = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0

    def state(self) -> tuple[float, ...]:
        """The learned state."""
        return self._weight, self._sum_x, self._sum_y, self._sum_xx, self._sum_xy

    @classmethod
    def restored(cls, state: tuple[float, ...]) -> "LinkTime":
        """The link time with this `state`."""
        link = cls()
        link._weight, link._sum_x, link._sum_y, link._sum_xx, link._sum_xy = state
        return link

    def observe(self, num_blocks: int, elapsed_s: float) -> None:
        """Learn from a transfer of `num_blocks` that took `elapsed_s`."""
        x, y = float(num_blocks), elapsed_s
        self._weight = FADE * self._weight + 1.0
        self._sum_x = FADE * self._sum_x + x
        self._sum_y = FADE * self._sum_y + y
        self._sum_xx = FADE * self._sum_xx + x * x
        self._sum_xy = FADE * self._sum_xy + x * y

    def predict_s(self, num_blocks: int) -> float:
        """The expected time of `num_blocks`; 0 before any transfer."""
        if not self._weight:
            return 0.0
        mean_x, mean_y = self._sum_x / self._weight, self._sum_y / self._weight
        spread = self._sum_xx / self._weight - mean_x * mean_x
        slope = mean_y / max(mean_x, 1.0)
        if spread > 1e-9:
            covariance = self._sum_xy / self._weight - mean_x * mean_y
            slope = min(slope, max(0.0, covariance / spread))
        return max(0.0, mean_y + slope * (num_blocks - mean_x))

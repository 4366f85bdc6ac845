"""The time to copy a block between device and host memory, learned from past copies."""

_SHARE = 0.05


class CopyTime:
    """Seconds per block, out and in, smoothed."""

    def __init__(self, block_s: float = 0.0) -> None:
        self.out_s = self.in_s = block_s

    def observe(self, num_out: int, out_s: float, num_in: int, in_s: float) -> None:
        """Learn from copies that ended."""
        if num_out:
            self.out_s += _SHARE * (out_s / num_out - self.out_s)
        if num_in:
            self.in_s += _SHARE * (in_s / num_in - self.in_s)

    def round_trip_s(self, num_blocks: int) -> float:
        """The time to copy blocks out and back again."""
        return num_blocks * (self.out_s + self.in_s)

    def state(self) -> tuple[float, float]:
        """The learned state, as plain numbers."""
        return self.out_s, self.in_s

    @classmethod
    def restored(cls, state: tuple[float, float]) -> "CopyTime":
        """The model with this `state`."""
        model = cls()
        model.out_s, model.in_s = state
        return model

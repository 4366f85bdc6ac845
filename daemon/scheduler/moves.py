"""How many gave way and came back."""

from dataclasses import dataclass


@dataclass(slots=True)
class Moves:
    """Counts of those who gave way and came back."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    swaps_out: int = 0
    swaps_in: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.preemptions or self.swaps_in)

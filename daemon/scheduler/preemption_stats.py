"""How often sequences of one instance gave way, and what became of them."""

from dataclasses import dataclass


@dataclass(slots=True)
class PreemptionStats:
    """Counts of preemptions and of what became of them."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    swaps_out: int = 0
    swaps_in: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.preemptions or self.swaps_in)

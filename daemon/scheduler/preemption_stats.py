"""Counts of one instance's preemptions."""

from dataclasses import dataclass


@dataclass(slots=True)
class PreemptionStats:
    """Counts of preemptions, recomputed tokens and swapped sequences; `daemon.memory.swap_space`
    counts blocks.
    """

    preemptions: int = 0
    recomputed_tokens: int = 0
    swaps_out: int = 0
    swaps_in: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.preemptions or self.swaps_in or self.recomputed_tokens)

"""What a policy is: an order, and a few traits of how steps are filled."""

from typing import ClassVar

from daemon.sequence import Sequence

ARRIVAL_BITS = 40
"""Ranks are int64: a policy's own key above, the arrival count below as tie-breaker."""


class Policy:
    """First come first served, prompts in chunks mixed with decodes; others differ in a line.

    A policy never allocates and holds no state of its own: it ranks sequences and says what a
    step may be made of. The sequence of highest rank is the victim when memory runs out.
    """

    name: ClassVar[str]
    prefill_alone: ClassVar[bool] = False
    """A step with a prompt in it carries no decodes."""
    whole_prompts: ClassVar[bool] = False
    """A prompt is split only if it is the first of its step and exceeds the budget left to it."""
    reserve_limit: ClassVar[bool] = False
    """Admission takes blocks for prompt + max_tokens, so nothing is ever preempted."""
    gang: ClassVar[bool] = False
    """Nobody joins while anybody runs."""
    batch_tokens: ClassVar[int] = 512
    """Token budget of a step, where the configuration leaves it to the policy."""

    def rank(self, sequence: Sequence) -> int:
        """The sequence's place; lower runs first."""
        return sequence.arrival

    def seated_rank(self, sequence: Sequence, step: int) -> int:
        """Its place among those that run, from the moment when it is seated, after `step`."""
        return sequence.rank

    def displaces(self, waiting: Sequence, running: Sequence, step: int) -> bool:
        """Whether a waiting sequence may preempt a running one to get its place."""
        return False

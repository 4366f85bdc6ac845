"""The Gittins index of learned lengths: least expected work for the worth of an answer's end."""

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy
from daemon.state.sequence import Sequence

REVIEW_TOKENS, REVIEW_SHARE = 64, 4
"""Tokens after which a running sequence's rank is updated, at least a quarter of its answer: its
outlook changes with the ratio of ages."""


class Gittins(Policy):
    """Order by the expected tokens to an answer's end, times the memory they hold.

    Sequences compete for memory over time. By the index of the lengths that this daemon
    has seen (`gittins_index.py`) it is first come first served where answers are alike, least
    attained service where tails are heavy, and shortest first where lengths are known.
    """

    name = "gittins"
    meaning = "least expected work for an end first; pauses are short"
    swap = PROACTIVE
    displaces = True
    reviews = True
    learns = True
    paces = True

    def enter(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Set the next review."""
        super().enter(sequence, step_time)
        self.review(sequence, sequence.num_output_tokens, step_time)

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The cost: its index, times the tokens held meanwhile."""
        outlook = sequence.outlook
        return outlook.gittins_index * (sequence.num_known_tokens + outlook.span_tokens / 2)

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Set the next review."""
        grown = max(REVIEW_TOKENS, num_output_tokens // REVIEW_SHARE)
        sequence.review_at = sequence.num_prompt_tokens + num_output_tokens + grown

"""ALISE's speculative scheduler: shortest predicted time first, with preemption."""

import math

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import DYNAMIC
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.remaining import remaining_s
from daemon.state.sequence import Sequence

AGING = 0.22
"""Seconds of head start for each second of age (the paper's virtual aging): a waiting sequence
overtakes newcomers that are shorter by up to this share of its age."""

GUESS_TOKENS = 32
"""Output expected of a request without a prediction. As it is doubled when reached, sequences that
got least come first, as in FastServe's queues."""

COMMON_TOKENS, HEAVIEST = 400, 4.0
"""A sequence of COMMON_TOKENS counts with its time alone, one of four times as many twice, and none
more than HEAVIEST times: so newcomers delay no sequence for longer than HEAVIEST / AGING times its
own time, however long its prompt is."""

REVIEW_TOKENS = 32
"""Tokens after which a running sequence's rank is updated."""

QUEUES, FIRST_STEPS = 8, 32
"""The priority queues of `speculative-queues`, and the most steps left in the first."""


class Speculative(Policy):
    """Ordered by predicted remaining time, times the memory it takes, less a share of age.

    Sequences compete for memory over time: each runs as fast beside others as alone, but keeps them
    out. So of two with the same time left the one that holds less goes first; by the root of the
    tokens held, since by all of them the longest answers wait longest at every load. All age alike,
    so that ageing moves no sequence within a queue: the order by left + AGING * arrival is that by
    left - AGING * age. An answer that outgrows its prediction is expected to be as long as nine in
    ten, then twice as long as it is (section 3.1).
    """

    name = "speculative"
    meaning = "least predicted time left first, weighed by memory and age"
    swap = DYNAMIC
    displaces = True
    reviews = True

    def enter(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Expect the predicted or the common length."""
        super().enter(sequence, step_time)
        self.on_prediction(sequence)

    def on_prediction(self, sequence: Sequence) -> None:
        """Set the next review: soon, or at the expected end."""
        if sequence.expected_tokens < 0:
            sequence.expected_tokens = min(GUESS_TOKENS, sequence.max_tokens)
        self._outgrow(sequence, sequence.num_output_tokens)
        self._look_after(sequence, sequence.num_output_tokens)

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Seconds left in the memory of a common sequence, and its arrival's share."""
        num_tokens = sequence.num_known_tokens + sequence.remaining_tokens / 2
        weight = min(HEAVIEST, math.sqrt(num_tokens / COMMON_TOKENS))
        left_s = remaining_s(sequence, step_time) * weight
        return left_s + AGING * sequence.arrived_s

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Expect more of a sequence that came further than expected."""
        self._outgrow(sequence, num_output_tokens)
        self._look_after(sequence, num_output_tokens)

    def _outgrow(self, sequence: Sequence, num_output_tokens: int) -> None:
        """Expect more of a sequence that is as long as expected, unless its limit ends it there."""
        expected = sequence.expected_tokens
        longer = sequence.high_tokens if sequence.trusted else 0
        if expected <= num_output_tokens and expected < sequence.max_tokens:
            doubled = 2 * max(1, num_output_tokens)
            sequence.expected_tokens = longer if longer > num_output_tokens else doubled

    def _look_after(self, sequence: Sequence, num_output_tokens: int) -> None:
        due = num_output_tokens + REVIEW_TOKENS
        if sequence.expected_tokens > num_output_tokens:
            due = min(due, sequence.expected_tokens)
        sequence.review_at = sequence.num_prompt_tokens + due


class SpeculativeQueues(Speculative):
    """Priority queues by predicted steps left, with virtual ageing by a threshold (section 3.1).

    The first queue has the sequences of at most FIRST_STEPS left, each further one those of up to
    twice as many; within a queue they go by arrival. A sequence that waits for the threshold K
    (`starve_s`) rises by one queue, and keeps that until it outgrows its prediction: then it falls,
    by one queue at least. The paper prints neither K nor the number of queues.
    """

    name = "speculative-queues"
    meaning = "queues by predicted time left; an answer that waits long rises"
    promotes = True
    promoted_share = math.inf
    num_levels = QUEUES

    def on_prediction(self, sequence: Sequence) -> None:
        """Set the next review, and the queue by the prediction."""
        super().on_prediction(sequence)
        sequence.level = _queue_of(sequence.remaining_tokens)

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its queue."""
        return float(sequence.level)

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Rise as the end comes nearer; fall where it is farther than was expected."""
        expected = sequence.expected_tokens
        super().review(sequence, num_output_tokens, step_time)
        queue = _queue_of(sequence.expected_tokens - num_output_tokens)
        if sequence.expected_tokens > expected:
            sequence.level = min(QUEUES - 1, max(sequence.level + 1, queue))
        else:
            sequence.level = min(sequence.level, queue)

    def patience_s(self, sequence: Sequence, starve_s: float, step_time: StepTimeModel) -> float:
        """The threshold; the first queue has none above it."""
        return starve_s if sequence.level else math.inf

    def promote(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """One queue up."""
        sequence.level -= 1


def _queue_of(num_steps: int) -> int:
    """The first queue for so many steps left."""
    return min(QUEUES - 1, math.ceil(math.log2(max(1.0, num_steps / FIRST_STEPS))))

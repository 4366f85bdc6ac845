"""FastServe's skip-join multi-level feedback queue (section 4.1, Algorithm 1)."""

import math

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy
from daemon.state.sequence import Sequence

LEVELS = 16
_LEAST_QUANTUM_S = 1e-4
_PLACE = (
    1e-10  # of a second in a queue's order: a queue is a rank, and a clock shows less than 1e10
)
PATIENCE = 2.0
"""The least wait before a promotion, in quanta of the sequence's level.

A promoted sequence runs for the quantum of the level that it came from, so that moving it in
and out of memory is paid for by a time slice as long as it has run already: promotion at a fixed
age would move long sequences back and forth for one token each.
"""


def quantum_s(level: int, step_time: StepTimeModel) -> float:
    """Time that a sequence may run at a level: the shortest step's, doubled at each level."""
    return max(_LEAST_QUANTUM_S, step_time.decode_s(1, 1)) * 2.0**level


def level_of(duration_s: float, step_time: StepTimeModel) -> int:
    """The first level whose quantum covers a step of this duration (Algorithm 1, line 8)."""
    doublings = math.log2(max(1.0, duration_s / quantum_s(0, step_time)))
    return min(LEVELS - 1, math.ceil(doublings))


class Mlfq(Policy):
    """Short steps first; a used-up quantum moves a sequence down, starvation to the front."""

    name = "mlfq"
    meaning = "short steps first; long answers fall behind, starving ones rise"
    swap = PROACTIVE
    displaces = True
    reviews = True
    promotes = True
    num_levels = LEVELS

    def enter(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Skip-join: the level whose quantum covers its prefill."""
        super().enter(sequence, step_time)
        prefill_s = step_time.prefill_s(sequence.num_known_tokens)
        sequence.level = level_of(prefill_s, step_time)
        left_s = quantum_s(sequence.level, step_time) - prefill_s
        sequence.review_at = sequence.num_known_tokens + _tokens(left_s, step_time)

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its level; before all of them if it was promoted."""
        return -1.0 if sequence.promoted else float(sequence.level)

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Its quantum is used up: one level down, or more if its next step takes longer."""
        sequence.promoted = False
        below = max(sequence.level + 1, level_of(step_time.decode_s(1, sequence.limit), step_time))
        sequence.level = min(LEVELS - 1, below)
        known = sequence.num_prompt_tokens + num_output_tokens
        sequence.review_at = known + _tokens(quantum_s(sequence.level, step_time), step_time)

    def patience_s(self, sequence: Sequence, starve_s: float, step_time: StepTimeModel) -> float:
        """`starve_s`, and PATIENCE times its own quantum at least."""
        return max(starve_s, PATIENCE * quantum_s(sequence.level, step_time))

    def promote(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """To the front, for the quantum of its own level."""
        sequence.promoted = True
        slice_tokens = _tokens(quantum_s(sequence.level, step_time), step_time)
        sequence.review_at = sequence.num_known_tokens + slice_tokens


class MlfqQ1(Mlfq):
    """Promotion as Algorithm 1 prints it (lines 19 to 21): after alpha, to Q1, for Q1's quantum.

    A promoted sequence falls from there as a new one does, by its next step's time. Alpha is
    `starve_s`, whatever the level, and no share of memory bounds the promoted ones.
    """

    name = "mlfq-q1"
    meaning = "FastServe as printed: starving answers rise to the first queue"
    promoted_share = math.inf

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """Its level; a promoted one was pushed to that queue's end, alpha after its wait began."""
        place = _PLACE * sequence.waiting_since_s if sequence.promoted else 0.0
        return sequence.level + place

    def patience_s(self, sequence: Sequence, starve_s: float, step_time: StepTimeModel) -> float:
        """Alpha."""
        return starve_s

    def promote(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """To Q1, for its quantum."""
        sequence.promoted = True
        sequence.level = 0
        slice_tokens = _tokens(quantum_s(0, step_time), step_time)
        sequence.review_at = sequence.num_known_tokens + slice_tokens

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """As of `Mlfq`, once the tokens of a promoted one's quantum have come. FastServe preempts
        between iterations: one that fell while its token is on its way would lose it, and begin
        the same iteration again for ever.
        """
        if not sequence.promoted or sequence.num_known_tokens >= sequence.review_at:
            super().review(sequence, num_output_tokens, step_time)


def _tokens(duration_s: float, step_time: StepTimeModel) -> int:
    """Tokens that a sequence gets in `duration_s`; at least one."""
    return max(1, int(duration_s / max(step_time.mean_s, _LEAST_QUANTUM_S)))

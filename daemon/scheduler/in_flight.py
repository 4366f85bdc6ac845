"""Steps that were sent to the worker and have not answered yet."""

from collections import deque

import msgspec

from daemon.cost.work import StepWork
from daemon.wire.columns import Bools, Int32, Slots


class InFlightStep(msgspec.Struct, frozen=True, gc=False):
    """What has to be remembered of a step until its answer: its R sampled rows, in order."""

    step: int
    slots: Slots  # [R]
    epochs: Int32  # [R]
    firsts: Slots  # slots whose first token since they joined this is; R or fewer
    finals: Bools  # [R]: the token is the sequence's last by max_tokens
    departures: int  # of all slots, when the step was planned
    work: StepWork


class InFlight:
    """The queue of them; answers come in the order of the plans."""

    def __init__(self) -> None:
        self.steps: deque[InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def newest(self) -> InFlightStep:
        """The step planned last. Raises IndexError if none is in flight."""
        return self.steps[-1]

    def add(self, step: InFlightStep) -> None:
        """Remember a step that was just planned."""
        self.steps.append(step)

    def answer(self, step: int) -> InFlightStep | None:
        """The oldest step if it is the one that answered; None for an answer nobody awaits."""
        if self.steps and self.steps[0].step == step:
            return self.steps.popleft()
        return None

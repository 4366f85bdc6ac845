"""Steps that were sent to the worker and have not answered yet."""

from collections import deque
from dataclasses import dataclass

from daemon.batch import Batch
from daemon.wire.columns import Int32, UInt8


@dataclass(slots=True, frozen=True)
class InFlightStep:
    """What has to be remembered of a step until its answer: its sampled rows, in order."""

    step: int
    slots: Int32  # [R]
    epochs: Int32  # [R]
    num_tokens: int
    planned_s: float


class InFlight:
    """The queue of them; answers come in the order of the plans."""

    def __init__(self) -> None:
        self._steps: deque[InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, batch: Batch, epochs: Int32, now: float) -> None:
        """Remember a step that was just planned; `epochs` int32 [max_slots] are today's."""
        sampled: UInt8 = batch.samples
        slots = batch.slots[sampled.view(bool)]
        step = InFlightStep(batch.step, slots, epochs[slots], batch.num_tokens, now)
        self._steps.append(step)

    def answer(self, step: int) -> InFlightStep | None:
        """The oldest step if it is the one that answered; None for an answer nobody awaits."""
        if self._steps and self._steps[0].step == step:
            return self._steps.popleft()
        return None

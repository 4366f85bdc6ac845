"""A worker that takes the real one's times from a journal."""

import math
from statistics import fmean

from daemon.core.instance.steady_steps import StepClock
from daemon.cost.work import StepWork
from daemon.lab.simulator.copies import CopiesEnded
from daemon.lab.simulator.journal import Incident, JournalInstance
from daemon.lab.simulator.worker import Answers, Computed
from daemon.state.batch import Batch
from daemon.wire.columns import Int32


class RecordedWorker:
    """Takes as long for each step as the journal's step of that number; beyond those, as long as
    the mean. What a death kept from being answered is not answered before it.

    The same holds for the swap copies of each plan; other copies take a block's time as reported
    when the worker was ready.
    """

    def __init__(
        self, incident: Incident, instance: int, home: JournalInstance, answers: Answers
    ) -> None:
        steps = [step for step in incident.steps if step.instance == instance]
        self._steps = {
            step.number: (step.end_s - step.start_s, step.elapsed_s, step.work.times)
            for step in steps
        }
        worked = [self._steps[step.number] for step in steps if step.work.num_tokens]
        worked = worked or [(home.warm_step_s, home.warm_step_s, 1)]
        taken_s = fmean(duration / times for duration, _, times in worked)
        self._mean = taken_s, fmean(elapsed / times for _, elapsed, times in worked), 1
        self._swaps = {
            swap.number: swap for swap in incident.swaps if swap.copied.instance == instance
        }
        self._lost_s = {
            step: lost_s for (lost, step), lost_s in incident.lost_s.items() if lost == instance
        }
        self._home = home
        self._answers = answers
        self._free_s = 0.0
        self._copied_s = 0.0

    def compute(self, now: float, batch: Batch, work: StepWork, more_s: float = 0.0) -> Computed:
        """Take a plan, whose step takes `more_s` longer."""
        other = self._mean if work.num_tokens else (0.0, 0.0, 1)
        duration_s, elapsed_s, times = self._steps.get(batch.step, other)
        share = work.times / times
        duration_s, elapsed_s = duration_s * share, elapsed_s * share
        self._free_s = end_s = max(now, self._free_s) + duration_s + more_s
        if batch.step not in self._steps:
            self._free_s = end_s = self._behind_death_s(batch.step, end_s)
        copies = self._copy(now, batch)
        reasons, counts = self._answers.sampled(batch)
        # The Core learns from the worker's measurement, as it did then.
        return Computed(
            start_s=end_s - elapsed_s,
            end_s=end_s,
            busy_s=duration_s,
            reasons=reasons,
            copies=copies,
            counts=counts,
        )

    def _copy(self, now: float, batch: Batch) -> CopiesEnded | None:
        num_out, num_in = batch.out_blocks.size, batch.in_blocks.size
        if not num_out and not num_in:
            return None
        block_s = self._home.pool.copy_block_s
        out_s, in_s = num_out * block_s, num_in * block_s
        taken_s = out_s + in_s
        swap = self._swaps.get(batch.step)
        if swap is not None:
            out_s, in_s = swap.copied.out_s, swap.copied.in_s
            taken_s = swap.copied.now - swap.sent_s
        self._copied_s = max(self._copied_s, now + taken_s)
        if swap is None:
            self._copied_s = self._behind_death_s(batch.step, self._copied_s)
        return CopiesEnded(self._copied_s, num_out, out_s, num_in, in_s)

    def _behind_death_s(self, step: int, end_s: float) -> float:
        """The end of what the journal has no answer of: after the death that kept it from coming,
        if one did.
        """
        return max(end_s, math.nextafter(self._lost_s.get(step, -math.inf), math.inf))

    @property
    def clock(self) -> StepClock | None:
        """None: a step takes as long as the journal's."""
        return None

    def least_s(self, num_steps: int) -> float:
        """Zero: it is unknown."""
        return 0.0

    @property
    def computed_s(self) -> float:
        """The time at which all its plans are computed."""
        return self._free_s

    def copied_s(self, places: Int32) -> float:
        """The time at which the last copy to its host pool is done."""
        return self._copied_s

    def warm_step_s(self) -> float:
        """The real worker's report."""
        return self._home.warm_step_s

    def warm_token_s(self) -> float:
        """The time that one prompt token added to a step then."""
        return self._home.warm_token_s

    @property
    def most_times(self) -> int:
        """The real worker's report."""
        return self._home.most_times

    @property
    def row_s(self) -> float:
        """The real worker's report."""
        return self._home.row_s

    @property
    def same_until(self) -> tuple[int, ...]:
        """The real worker's report."""
        return self._home.same_until

    @property
    def capped_s(self) -> float:
        """Zero: a journal knows nothing of power."""
        return 0.0

    def clear(self, now: float) -> None:
        """Drop all steps and copies."""
        self._free_s = self._copied_s = now

    def energy_j(self, run_s: float) -> float | None:
        """None: a journal knows nothing of power."""
        return None

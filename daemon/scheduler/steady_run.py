"""A run of steady decodes: many steps of one instance, whose columns are changed once, at the end.

Each step of a run is planned and answered as it would be alone (`steady_decode.py`). A run is over
before the first step for which anything but its number would have to be decided.
"""

import numpy as np

from daemon.cost.work import StepWork
from daemon.memory.swap_space import DYNAMIC, PROACTIVE
from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.policies.base import PREDICTION
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.steady_decode import SteadyDecode
from daemon.wire.columns import ONE, Int32, Slots


def calm_plans(scheduler: Scheduler) -> float:
    """The number of plans that an instance can surely make, without an arrival, before a sequence
    waits there; infinity where none runs.
    """
    kv, num_running = scheduler.kv, scheduler.num_running
    if scheduler.waiting.num or scheduler.suspects.members or scheduler.limits.stages > 1:
        return 0.0
    if scheduler.policy.reserves == PREDICTION or kv.reservations.num_slots or kv.has_windows:
        return 0.0
    if not num_running:
        return float("inf")
    # Each has a block of its own for so many tokens, from the first that it lacks one for.
    return (kv.num_unreserved // num_running) * kv.block_size


class SteadyRun:
    """The steps of a run so far: `plan` and `answer` count them, and `end` changes the columns.

    Until then an instance's columns are those of the run's beginning.
    """

    def __init__(self, scheduler: Scheduler, steady: SteadyDecode) -> None:
        self._scheduler = scheduler
        self._steady = steady
        self._kv = kv = scheduler.kv
        admission, table = scheduler.admission, scheduler.slots
        self.step = admission.step  # the newest plan
        self.num_rows = steady.slots.size
        self.num_plans = self.num_answers = 0
        self.num_unwritten = steady.num_unwritten  # places for tokens in the blocks of the rows
        self.most_plans = steady.num_left - 1
        if scheduler.policy.reviews:
            until_review = table.review_at[steady.slots].astype(np.int64) - steady.starts - 1
            self.most_plans = min(self.most_plans, int(until_review.min()))
        residency = scheduler.residency
        self._keeps_reserve = (
            residency.mode == PROACTIVE
            and residency.copies_ahead
            and not residency.space.num_flying
            and residency.space.pool.num_available > 0
        )
        self._growing: list[Slots | None] = [None] * kv.block_size
        self._attended = steady.attended

    @classmethod
    def of(cls, scheduler: Scheduler) -> "SteadyRun | None":
        """A run from an instance's newest plan on; None where a step needs to be planned."""
        steady = scheduler.steady_decodes.newest
        if steady is None or not scheduler.in_flight.steps or not _is_plain(scheduler, steady):
            return None
        return cls(scheduler, steady)

    @property
    def columns(self) -> tuple[Int32, Int32]:
        """(slots, positions) of the next step's rows, as a plan has them; before the first one."""
        return self._steady.columns, self._steady.starts

    def may_plan(self, now: float, num_steps: int, sure: bool) -> bool:
        """Whether so many further steps need no decision now; `sure`: one of them is planned now if
        not.
        """
        scheduler, needed = self._scheduler, num_steps * self.num_rows
        if self.num_plans + num_steps > self.most_plans or self._kv.num_unreserved < needed:
            return False
        if self._keeps_reserve and scheduler.residency.lacks_reserve(
            self._kv, self.num_rows, now, needed, sure
        ):
            return False
        admission, waiting = scheduler.admission, scheduler.waiting
        if admission.predicted_room.is_open(self._kv):
            return False
        if not waiting.num:
            return True
        if not scheduler.filler.is_settled():
            return False
        return scheduler.slots.full or admission.is_stuck(waiting.first)

    def plan(self) -> StepWork:
        """Count a further plan, with blocks for its tokens; its work."""
        slots, num_rows = self._lacking(self.num_plans), self.num_rows
        if slots.size:
            self._kv.append_each(slots)
            self.num_unwritten += slots.size * self._kv.block_size
        self.num_plans += 1
        self.step += 1
        self.num_unwritten -= num_rows
        work = StepWork(num_rows, self._attended, (), num_rows)
        self._attended += num_rows
        return work

    def answer(self, step: int) -> None:
        """Count an answer, of the oldest step in flight."""
        self.num_answers += 1
        self._kv.pool.step_done(step)

    def end(self) -> None:
        """Have the instance's columns be those after the steps so far."""
        scheduler, steady, table = self._scheduler, self._steady, self._scheduler.slots
        admission, steps = scheduler.admission, scheduler.in_flight.steps
        first = admission.step + 1
        answered = steps[0].step + self.num_answers - 1
        if self.num_plans:
            self._kv.table.take_changes()  # nobody asks for the plans
            admission.step = self._kv.newest_step = self.step
            admission.num_promised = 0
            steady.count_more(self.num_plans, table, self._kv, self.step)
        num_known = min(self.num_answers, len(steps))
        for _ in range(num_known):
            steps.popleft()
        for step in range(max(first, answered + 1), self.step + 1):
            steps.append(self._flown(step))
        if self.num_answers:
            admission.answered_step = answered
            num_flying = np.int32(self.step - answered)
            table.delivered[steady.slots] = steady.starts + ONE - num_flying

    def _flown(self, step: int) -> InFlightStep:
        """The record of a plan of the run that has not answered."""
        steady, num_later = self._steady, self.step - step
        num_rows = self.num_rows
        work = StepWork(num_rows, self._attended - (num_later + 1) * num_rows, (), num_rows)
        delivered = steady.starts + ONE - np.int32(num_later)
        return steady.flown(step, delivered, work, self._scheduler.slots.departures)

    def _lacking(self, number: int) -> Slots:
        """The slots that lack a block for the token of the plan with this number."""
        place = number % self._kv.block_size
        slots = self._growing[place]
        if slots is None:
            slots = self._growing[place] = self._steady.lacking_after(place)
        return slots


def _is_plain(scheduler: Scheduler, steady: SteadyDecode) -> bool:
    """Whether the steps in flight are steady decodes, and nothing but such is on its way."""
    admission, kv, policy = scheduler.admission, scheduler.kv, scheduler.policy
    waits, table = scheduler.waiting.num > 0, scheduler.slots
    if scheduler.limits.stages > 1 or scheduler.suspects.members or scheduler.holds_back:
        return False
    if policy.nears or kv.has_windows or kv.has_states or kv.has_copies:
        return False
    if admission.joined or admission.left or scheduler.started or scheduler.stats.any:
        return False
    residency = scheduler.residency
    if residency.is_moving or (scheduler.steady_decodes.most_times > 1 and not waits):
        return False
    if waits:  # someone in the queue may come due, or take the place of one that runs
        if policy.promotes or policy.displaces or scheduler.pace.max_pause_s:
            return False
        if scheduler.waiting.unranked or residency.num_parked_blocks or residency.mode == DYNAMIC:
            return False
    if steady.slots is not table.order() or not steady.fits(kv):
        return False
    return all(steady.is_of(flown, table.departures) for flown in scheduler.in_flight.steps)

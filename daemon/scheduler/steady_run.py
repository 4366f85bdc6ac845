"""A run of steady decodes: many steps of one instance, whose columns are changed once, at the end.

Each step of a run is planned and answered as it would be alone (`steady_decode.py`). A run is over
before the first step for which anything but its number would have to be decided.
"""

import numpy as np

from daemon.cost.work import StepWork
from daemon.memory.swap_space import DYNAMIC, PROACTIVE
from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.policies.base import NOTHING, PREDICTION
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.steady_decode import SteadyDecode
from daemon.wire.columns import ONE, Int32, Int64, Slots, UInt8, any_true

NEVER_S = float("inf")


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


def num_plain_of(scheduler: Scheduler, reasons: list[UInt8]) -> int:
    """How many of the steps in flight, from the oldest on, end no answer, with these `reasons`."""
    table, steps = scheduler.slots, scheduler.in_flight.steps
    for number, why in enumerate(reasons):
        if any_true(why):
            flown = steps[number]
            if flown.departures == table.departures or any_true(why[flown.alive(table)]):
                return number
    return len(reasons)


class SteadyRun:
    """The steps of a run so far: `plan` and `answer` count them, and `end` changes the columns.

    Until then an instance's columns are those of the run's beginning.
    """

    def __init__(self, scheduler: Scheduler, steady: SteadyDecode) -> None:
        self._scheduler = scheduler
        self._steady = steady
        self._orders = [(0, steady)]  # each with the first step that has its rows' order
        self._kv = kv = scheduler.kv
        self.step = scheduler.admission.step  # the newest plan
        self._first = scheduler.in_flight.steps[0].step  # the oldest in flight
        self.num_rows = steady.slots.size
        self.num_plans = self.num_answers = 0
        self._told_plans = self._told_answers = 0  # of these, those that the columns know
        self.num_unwritten = steady.num_unwritten  # places for tokens in the blocks of the rows
        self._lacking: list[Slots] = []  # of plans whose blocks are not allocated yet
        self._num_lacking = self._first_lacking = 0
        self._reviews = scheduler.policy.reviews
        self._until_limit = steady.num_left - 1
        self._most_plans = self._count_plans()
        residency = scheduler.residency
        self._keeps_reserve = (
            residency.mode == PROACTIVE
            and residency.copies_ahead
            and not residency.space.num_flying
            and residency.space.pool.num_available > 0
        )
        self._growing: list[Slots | None] = [None] * kv.block_size
        self._attended = steady.attended
        self._free_plans, self._free_until_s = 0, 0.0

    @classmethod
    def of(cls, scheduler: Scheduler) -> "SteadyRun | None":
        """A run from an instance's newest plan on; None where a step needs to be planned."""
        steady, flying = scheduler.steady_decodes.newest, scheduler.in_flight.steps
        if steady is None or not flying or not _is_plain(scheduler):
            return None
        if steady.slots is not scheduler.slots.order():  # some have ended since
            steady = scheduler.steady_decodes.renew()
        if steady is None or not steady.fits(scheduler.kv):
            return None
        table = scheduler.slots
        return (
            cls(scheduler, steady) if all(steady.is_of(flown, table) for flown in flying) else None
        )

    @property
    def columns(self) -> tuple[Int32, Int32]:
        """(slots, positions) of the next step's rows, as a plan has them; before the first one."""
        return self._steady.columns, self._steady.starts

    def _count_plans(self) -> int:
        """The plans before one sequence ends by its limit, or is to be reviewed."""
        if not self._reviews:
            return self._until_limit
        steady = self._steady
        left = self._scheduler.slots.review_at[steady.slots] - steady.starts
        return min(self._until_limit, self.num_plans - 1 + int(left[left.argmin()]))

    @property
    def sequences(self) -> Int64:
        """The sequences of the rows, in any order."""
        return self._steady.sequences

    @property
    def num_held(self) -> int:
        """Blocks with an owner, those counted."""
        return self._kv.pool.num_held + self._num_lacking

    def is_free(self, now: float, num_steps: int) -> bool:
        """Whether so many further steps surely need no decision now."""
        return self.num_plans + num_steps <= self._free_plans and now < self._free_until_s

    def may_plan(self, now: float, num_steps: int, sure: bool = True, at_once: bool = True) -> bool:
        """Whether so many further steps need no decision now, where that is not sure yet; `sure`:
        one of them is planned now, `at_once`: nothing else happens before.
        """
        num_plans = self.num_plans + num_steps
        if num_plans > self._until_limit:
            return False
        self._allocate()
        scheduler, num_rows = self._scheduler, self.num_rows
        residency, needed = scheduler.residency, num_steps * num_rows
        spare, until_s = self._kv.num_unreserved, NEVER_S
        if spare < needed:
            return False
        if self._keeps_reserve:
            num_available = self._kv.pool.num_available
            num_kept = residency.kept_at(self._kv, num_rows, now, sure)
            spare, until_s = min(spare, num_available - num_kept), residency.reserve.window_end_s
            if spare < needed:
                return False
        if not self._is_settled():
            return False
        if num_plans > self._most_plans and not (at_once and num_steps == 1 and self._review(now)):
            return False
        if sure and not scheduler.waiting.num and scheduler.policy.reserves == NOTHING:
            # Each takes a block once in so many plans.
            num_free = self.num_plans + (spare // num_rows - 1) * self._kv.block_size
            self._free_plans, self._free_until_s = min(self._most_plans, num_free), until_s
        return True

    def _is_settled(self) -> bool:
        """Whether neither the room of answers nor who waits is to be decided."""
        admission, waiting = self._scheduler.admission, self._scheduler.waiting
        if admission.predicted_room.is_open(self._kv):
            return False
        if not waiting.num:
            return True
        if not self._scheduler.filler.is_settled():
            return False
        return self._scheduler.slots.full or admission.is_stuck(waiting.first)

    def _review(self, now: float) -> bool:
        """Let the policy review who reached its time; whether the next step may be planned then."""
        self._tell()
        self._scheduler.order.review(now)
        if self._scheduler.slots.order() is not self._steady.slots:
            steady = self._scheduler.steady_decodes.renew()
            if steady is None:
                return False
            self._steady, self._growing = steady, [None] * self._kv.block_size
            self._orders.append((self.step + 1, steady))
        self._most_plans = self._count_plans()
        return self.num_plans < self._most_plans

    def plan(self) -> StepWork:
        """Count a further plan, with blocks for its tokens; its work."""
        num_rows, block_size = self.num_rows, self._kv.block_size
        place = (self.num_plans - self._told_plans) % block_size
        slots = self._growing[place]
        if slots is None:
            slots = self._growing[place] = self._steady.lacking_after(place)
        if slots.size:
            if self.num_plans - self._first_lacking >= block_size:
                self._allocate()  # so that each slot lacks one block at most
            if not self._lacking:
                self._first_lacking = self.num_plans
            self._lacking.append(slots)
            self._num_lacking += slots.size
            self.num_unwritten += slots.size * block_size
        self.num_plans += 1
        self.step += 1
        self.num_unwritten -= num_rows
        work = StepWork(num_rows, self._attended, (), num_rows)
        self._attended += num_rows
        return work

    def _allocate(self) -> None:
        """Allocate the blocks that plans so far have counted, as each would have had them."""
        lacking, kv = self._lacking, self._kv
        if not lacking:
            return
        self._lacking, num_lacking, self._num_lacking = [], self._num_lacking, 0
        if len(lacking) > 1 and num_lacking <= kv.pool.num_free:
            lacking.reverse()  # the earlier a plan, the nearer to the top of the stack are its own
            kv.append_each(np.concatenate(lacking))
            return
        for slots in lacking:
            kv.append_each(slots)

    def answer(self, step: int) -> None:
        """Count an answer, of the oldest step in flight."""
        self.num_answers += 1
        pool = self._kv.pool
        if pool.num_fenced:  # blocks that come back now are on top of the stack
            self._allocate()
        pool.step_done(step)

    def _tell(self) -> None:
        """Have the instance's columns be those after the steps so far."""
        self._allocate()
        steady, table, num_plans = self._steady, self._scheduler.slots, self.num_plans
        if num_plans > self._told_plans:
            steady.count_more(num_plans - self._told_plans, table, self._kv, self.step)
            self._growing, self._told_plans = [None] * self._kv.block_size, num_plans
        if self.num_answers > self._told_answers:
            self._told_answers = self.num_answers
            num_flying = np.int32(self.step + 1 - self._first - self.num_answers)
            table.delivered[steady.slots] = steady.starts + ONE - num_flying

    def end(self) -> None:
        """Have the instance be as after the steps so far."""
        self._tell()
        admission, steps = self._scheduler.admission, self._scheduler.in_flight.steps
        oldest, planned = self._first + self.num_answers, admission.step
        if self.num_plans:
            self._kv.table.take_changes()  # nobody asks for the plans
            admission.step = self._kv.newest_step = self.step
            admission.num_promised = 0
            admission.left.clear()
        if self.num_answers:
            admission.answered_step = oldest - 1
        for _ in range(min(self.num_answers, len(steps))):
            steps.popleft()
        for step in range(max(planned + 1, oldest), self.step + 1):
            steps.append(self._flown(step))

    def _flown(self, step: int) -> InFlightStep:
        """The record of a plan of the run that has not answered."""
        last, num_rows, steady = self.step, self.num_rows, self._steady
        for first, earlier in reversed(self._orders):  # to the one by which it was planned
            steady = earlier
            if first <= step:
                break
            last = first - 1
        attended = self._attended - (self.step + 1 - step) * num_rows
        delivered = steady.starts + ONE - np.int32(last - step)
        work = StepWork(num_rows, attended, (), num_rows)
        return steady.flown(step, delivered, work, self._scheduler.slots.departures)


def _is_plain(scheduler: Scheduler) -> bool:
    """Whether nothing but steps of those that run is on its way."""
    admission, kv, policy = scheduler.admission, scheduler.kv, scheduler.policy
    waits = scheduler.waiting.num > 0
    if scheduler.limits.stages > 1 or scheduler.suspects.members or scheduler.holds_back:
        return False
    if policy.nears or kv.has_windows or kv.has_states or kv.has_copies:
        return False
    if admission.joined or scheduler.started or scheduler.stats.any:
        return False
    residency = scheduler.residency
    if residency.is_moving or (scheduler.steady_decodes.most_times > 1 and not waits):
        return False
    if waits:  # someone in the queue may come due, or take the place of one that runs
        if policy.promotes or policy.displaces or scheduler.pace.max_pause_s:
            return False
        if scheduler.waiting.unranked or residency.num_parked_blocks or residency.mode == DYNAMIC:
            return False
    return True

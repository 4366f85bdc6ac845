"""Many steady decodes of an instance at once, as a simulated clock tells their times.

A driver that knows when steps will end needs no event for each: from an instance's newest plan on,
steps are planned and answered one after another as `Core.handle` would with a tick and a `StepDone`
each, up to the first one that needs a decision, or to a given time.
"""

from collections import deque
from typing import Protocol

import msgspec

from daemon.core.instance.instance import PLAN_GAP_S, Instance
from daemon.core.wakes import AT_ONCE, NEVER
from daemon.cost.work import StepWork
from daemon.scheduler.steady_run import SteadyRun, num_plain_of
from daemon.wire.columns import Int32, Int64, UInt8


class StepClock(Protocol):
    """The driver's knowledge of one worker's steps: their times, and where answers end."""

    def num_plain(self, slots: Int32, starts: Int32) -> int:
        """How many further steps of these rows, from these positions on, end no answer."""

    def decode(self, now: float, work: StepWork) -> "Flying":
        """The next step, of decodes, which is planned now."""


class Flying(msgspec.Struct, frozen=True, gc=False):
    """A step in flight: the times at which it began and will end."""

    start_s: float
    end_s: float
    busy_s: float  # of that, the time in which its device computes
    work: StepWork


class SteadySteps(msgspec.Struct, gc=False):
    """The outcome of a run of steps: what a driver would have heard and seen at each answer."""

    sequences: Int64  # [R], in any order: each answered step delivers a token of each
    answered: list[Flying] = []
    num_held: list[int] = []  # blocks with an owner, after each answer
    num_unwritten: list[int] = []  # places for tokens that the rows' blocks have left, likewise
    num_plans: int = 0
    flying: list[Flying] = []


def steady_steps(
    instance: Instance,
    now: float,
    until_s: float,
    in_flight: list[Flying],
    reasons: list[UInt8],
    clock: StepClock,
) -> SteadySteps | None:
    """Take all steps of an instance that are before `until_s`, of which the first is due now, and
    need no decision; None: there is none. `reasons`: as the answers of those in flight will have.
    """
    num_plain = num_plain_of(instance.scheduler, reasons)
    if num_plain < len(in_flight) and (not num_plain or instance.due_s <= now):
        return None
    run = SteadyRun.of(instance.scheduler)
    if run is None or instance.waits_for_prompts:
        return None
    taking = _Taking(instance, run, in_flight, num_plain, clock)
    if not taking.go_on(now, until_s):
        return None
    return taking.end()


class _Taking:
    """The steps being taken. The instance is told of them at the end; until then its times are
    here.
    """

    def __init__(
        self,
        instance: Instance,
        run: SteadyRun,
        in_flight: list[Flying],
        num_plain: int,
        clock: StepClock,
    ) -> None:
        self._instance, self._run, self._clock = instance, run, clock
        self._step_time = instance.step_time
        self._on_step_time = instance.scheduler.on_step_time
        self._flying = deque(in_flight)
        self._answers_left = num_plain
        self._plans_left = 0
        if num_plain == len(in_flight):
            self._plans_left = clock.num_plain(*run.columns)
        self._oldest = instance.scheduler.in_flight.steps[0].step
        self._began_s, self._due_s = instance.step_began_s, instance.due_s
        self._works: list[StepWork] = []  # of the plans
        self._did = SteadySteps(sequences=run.sequences)

    def go_on(self, now: float, until_s: float) -> bool:
        """Take the steps; whether there was one."""
        flying = self._flying
        if self._due_s < now:
            return False  # it has been asked, and had nothing to plan
        self._expect()
        while True:
            end_s, due_s = flying[0].end_s, self._due_s
            if due_s < end_s:
                if due_s >= until_s or not self._may_plan(due_s, len(flying)):
                    break
                self._plan(due_s)
            elif end_s < until_s and self._answers_left and self._may_answer(end_s):
                self._answer(end_s)
            else:
                break
        return bool(self._works or self._did.answered)

    def _expect(self) -> None:
        """Expect the newest step's time, by what was learned so far."""
        self._terms = self._step_time.terms
        self._expected_s = self._step_time.predict_s(self._flying[-1].work)

    def _may_plan(
        self, now: float, num_flying: int, sure: bool = True, at_once: bool = True
    ) -> bool:
        """Whether all steps may be planned that could be planned now, with so many in flight."""
        num_steps = max(1, (self._instance.known_depth or self._instance.depth) - num_flying)
        if num_steps > self._plans_left:
            return False
        return self._run.is_free(now, num_steps) or self._run.may_plan(
            now, num_steps, sure, at_once
        )

    def _may_answer(self, now: float) -> bool:
        """Whether no plan follows on the answer at once, or it may be made here."""
        num_left = len(self._flying) - 1
        if num_left and now + self._expected_s - PLAN_GAP_S > now and not self._step_time.fits_next:
            return True
        return self._may_plan(now, num_left, sure=not num_left, at_once=False)

    def _plan(self, now: float) -> None:
        """Plan all that is due."""
        run, flying = self._run, self._flying
        while self._due_s <= now:
            work = run.plan()
            self._plans_left -= 1
            self._answers_left += 1
            if not flying:
                self._began_s = now
            flying.append(self._clock.decode(now, work))
            self._works.append(work)
            self._expect()
            self._update_due()

    def _update_due(self) -> None:
        """As `Instance.update_due`, of steps that none holds back."""
        num_flying = len(self._flying)
        if not num_flying:
            self._due_s = AT_ONCE
        elif num_flying >= (self._instance.known_depth or self._instance.depth):
            self._due_s = NEVER
        else:
            began_s = self._began_s
            self._due_s = max(began_s, began_s + self._expected_s - PLAN_GAP_S)

    def _answer(self, now: float) -> None:
        """Take the oldest step's answer, learn from it as `Instance.learn` does, and plan what is
        due then.
        """
        run, did, done, step_time = self._run, self._did, self._flying.popleft(), self._step_time
        self._answers_left -= 1
        run.answer(self._oldest)
        self._oldest += 1
        expected_s = step_time.predict_s(done.work)
        if expected_s > 0.0:
            self._on_step_time((now - self._began_s) / expected_s, has_drafts=False)
        step_time.observe(done.work, done.end_s - done.start_s)
        self._began_s = now
        if step_time.terms is not self._terms and self._flying:
            self._expect()
        self._update_due()
        if self._due_s <= now:
            self._plan(now)
        did.answered.append(done)
        did.num_held.append(run.num_held)
        did.num_unwritten.append(run.num_unwritten)

    def end(self) -> SteadySteps:
        """Have the instance be as after these steps."""
        run, did, instance = self._run, self._did, self._instance
        run.end()
        instance.took(self._works, run.num_rows, self._began_s, self._due_s)
        if did.answered:
            instance.behind_prompts = None
        did.num_plans = run.num_plans
        did.flying = list(self._flying)
        return did

"""A simulated worker: it takes plans, spends virtual time on them, and knows when answers end."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from daemon.core.instance.steady_steps import Flying, StepClock
from daemon.cost.profile import Profile
from daemon.cost.step_cost import StepCost
from daemon.cost.work import StepWork, within_windows
from daemon.lab.simulator.copies import CopiesEnded, CopyEngine
from daemon.lab.simulator.drafts import Drafts
from daemon.lab.simulator.links import SimulatedLink
from daemon.lab.simulator.power import PowerMeter
from daemon.state.batch import Batch
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST
from daemon.wire.columns import Int32, UInt8, all_true, int32

_DRAWS = 4096
_WARM_TOKENS = 256
LEAST_SHARE = 0.25
"""No step of any profile takes less than this share of a decode alone."""
_ONE_EACH = int32()


class Noise:
    """Factors on step times: lognormal with mean one, with the spread of the profile's
    residuals.
    """

    def __init__(self, sigma: float, chance: np.random.Generator) -> None:
        self._sigma = sigma
        self._chance = chance
        self._factors: list[float] = []
        self._least = 1.0  # of these

    def least(self, count: int) -> float:
        """No more than any of the next `count` factors."""
        if self._sigma and len(self._factors) < count:
            self._draw()
        return self._least

    def _draw(self) -> None:
        logs = self._chance.normal(-0.5 * self._sigma**2, self._sigma, _DRAWS)
        self._factors[:0] = np.exp(logs).tolist()
        self._least = min(self._factors)

    def factor(self) -> float:
        """The next step's factor."""
        if not self._sigma:
            return 1.0
        if not self._factors:
            self._draw()
        return self._factors.pop()


class Computed(msgspec.Struct, frozen=True, gc=False):
    """A plan's step, and its swap copies if there are any."""

    start_s: float
    end_s: float
    busy_s: float  # of that, the time in which a device of the instance computes, on average
    reasons: UInt8
    copies: CopiesEnded | None
    counts: Int32 = _ONE_EACH  # as in `StepDone`


class Worker(Protocol):
    """The simulator's view of an instance's worker."""

    def compute(self, now: float, batch: Batch, work: StepWork, more_s: float = 0.0) -> Computed:
        """Take a plan, whose step takes `more_s` longer. A worker computes plans in order."""

    @property
    def computed_s(self) -> float:
        """The time at which all its plans are computed."""

    def copied_s(self, places: Int32) -> float:
        """The time at which the last copy to these blocks of its host pool is done."""

    def warm_step_s(self) -> float:
        """Time of one decode of one sequence, as a worker reports when it is ready."""

    def warm_token_s(self) -> float:
        """The time that one prompt token adds to a step, as the worker reports then."""

    @property
    def most_times(self) -> int:
        """Most decode steps in one multi-step program, as the worker reports then."""

    @property
    def row_s(self) -> float:
        """The time of a step's first row, as the worker reports then; 0: it does not say."""

    @property
    def same_until(self) -> tuple[int, ...]:
        """The numbers of tokens up to which steps compute alike, as the worker reports then."""

    @property
    def capped_s(self) -> float:
        """The steps' time in which the power cap bound."""

    @property
    def clock(self) -> StepClock | None:
        """The times of its next decodes, without their plans; None: it needs each plan."""

    def least_s(self, num_steps: int) -> float:
        """A time that none of its next steps, as many as this, falls short of."""

    def clear(self, now: float) -> None:
        """Drop all steps and copies: the process died."""

    def energy_j(self, run_s: float) -> float | None:
        """Energy of its devices over the run; None where it is unknown."""


class Answers:
    """The true ends of answers, which workers know and the Core does not.

    `stops_at[request, index]` is the length at which an answer's last token is sampled.
    """

    def __init__(
        self,
        stops_at: Int32,
        max_running: int,
        drafts: Drafts | None = None,
        same_until: tuple[int, ...] = (),
    ) -> None:
        """`same_until`: the worker's, as in `WorkerReady`."""
        self._stops_at = stops_at
        self._drafts, self._same_until = drafts, same_until
        self._sequences = np.zeros(max_running, np.int64)
        self._by_slot = np.zeros(max_running, np.int32)
        self._slots = int32()  # of the newest step, and for each the start of its last token's step
        self._last_starts = int32()

    def sampled(self, batch: Batch) -> tuple[UInt8, Int32]:
        """(reasons, counts) of a plan's sampled rows, as in `StepDone`."""
        reasons = self._reasons(batch)
        if self._drafts is not None and batch.drafts.size and self._takes(batch):
            return self._drafted(batch, self._drafts)
        return reasons, self._counts(batch)

    def _takes(self, batch: Batch) -> bool:
        """Whether a worker computes a plan's drafts: it leaves them out where the step would be
        computed in another way with them.
        """
        num_drafts = int(batch.drafts.sum())
        without = batch.num_tokens - num_drafts, int(batch.samples.sum())
        return not any(
            count <= most < count + num_drafts for count in without for most in self._same_until
        )

    def _drafted(self, batch: Batch, drafts: Drafts) -> tuple[UInt8, Int32]:
        """The same of a plan with drafts: a row samples those that are accepted, and one more."""
        (rows,) = batch.samples.nonzero()
        slots = batch.slots[rows].astype(np.intp)
        lengths = (batch.starts + batch.counts)[rows]
        left = self._by_slot[slots] - lengths  # tokens before the last one
        counts = np.zeros(rows.size, np.int32)
        (drafting,) = batch.drafts[rows].nonzero()
        asked = self._sequences[slots], lengths, batch.drafts[rows]
        columns = [column[drafting].tolist() for column in asked]
        counts[drafting] = [drafts.accepted(*row) for row in zip(*columns, strict=True)]
        reasons: UInt8 = (counts >= left).view(np.uint8)
        return reasons, np.minimum(counts, left.clip(0)) + np.int32(1)

    def num_plain(self, slots: Int32, starts: Int32) -> int:
        """How many further steps of these rows, from these positions on, end no answer."""
        if slots is not self._slots:
            self._slots = slots
            self._last_starts = self._by_slot[slots.astype(np.intp)] - np.int32(1)
        left = self._last_starts - starts
        return max(0, int(left[left.argmin()]))

    def _reasons(self, batch: Batch) -> UInt8:
        """STOP for each sampled row whose answer ends with this token."""
        stops = self._by_slot
        if batch.joined_slots.size:
            self._sequences[batch.joined_slots] = batch.joined_sequences
            which = divmod(batch.joined_sequences, MAX_SEQUENCES_PER_REQUEST)
            stops[batch.joined_slots] = self._stops_at[which]
        if batch.slots is not self._slots or batch.joined_slots.size:
            self._slots = batch.slots  # steps of the same decodes show one column
            self._last_starts = stops[batch.slots.astype(np.intp)] - batch.counts
        last = batch.starts >= self._last_starts - np.int32(batch.times - 1)
        samples = batch.samples
        if not all_true(samples):
            last = last[samples.view(bool)]
        reasons: UInt8 = last.view(np.uint8)  # true is FinishReason.STOP
        return reasons

    def _counts(self, batch: Batch) -> Int32:
        """The tokens of each row of a multi-step plan, after its reasons; empty: one each."""
        if batch.times == 1:
            return _ONE_EACH
        left: Int32 = self._last_starts - batch.starts + np.int32(1)
        return left.clip(1, batch.times)


class SimulatedWorker:
    """One instance's devices, a pipeline of `profile.pp` stages."""

    def __init__(
        self,
        profile: Profile,
        cost: StepCost,
        answers: Answers,
        noise: Noise,
        power: PowerMeter,
        handovers: Sequence[SimulatedLink],
        copies: CopyEngine,
        windows: tuple[int, ...] = (),
    ) -> None:
        """`handovers` are the links from each stage to the next, of this instance alone; `windows`
        those of groups of layers, as a worker reports them.
        """
        self._profile = profile
        self._cost = cost
        self._answers = answers
        self._noise = noise
        self._power = power
        self._handovers = tuple(handovers)
        self._copies = copies
        self._windows = windows
        self._stage_free_s = [0.0] * profile.pp
        self._gap_s, self._turn_s = profile.edges.gap_s, profile.edges.turn_s
        self._alone_s = cost.step_s(StepWork(1, 1, (), 1))
        # Of steps of decodes alone, as many as in the newest one.
        self._num_decodes, self._decodes_s = 1, cost.decodes_s(1)
        self._decodes_power = power.of_decodes(1)

    def compute(self, now: float, batch: Batch, work: StepWork, more_s: float = 0.0) -> Computed:
        """Take a plan, whose step takes `more_s` longer. A worker computes plans in order."""
        free = self._stage_free_s
        copies = self._copies.order(now, free[-1], batch)
        if not work.num_tokens:
            # Answers come in the order of the plans, even of those that only copy.
            done_s = max(now, free[-1])
            return Computed(done_s, done_s, 0.0, self._answers.sampled(batch)[0], copies)
        once = within_windows(work, batch, self._windows).once
        step_s = self._cost.step_s(once) * self._noise.factor() * self._power.slowdown(once)
        step_s = step_s * work.times + more_s / self._profile.pp
        start_s = max(now + self._gap_s, free[0] + self._turn_s)
        if batch.awaits and copies is not None:
            start_s = max(start_s, copies.end_s)
        end_s = free[0] = start_s + step_s
        if self._handovers:
            num_tokens = work.num_tokens
            handing_s = self._profile.stage_s(num_tokens)
            # A link has one user, whose steps come in order: booking ahead keeps the order of time.
            for stage, link in enumerate(self._handovers, 1):
                handed_s = link.hold(end_s, handing_s, num_tokens)
                end_s = free[stage] = max(handed_s, free[stage]) + step_s
        self._power.spend(once, step_s)
        reasons, counts = self._answers.sampled(batch)
        return Computed(
            start_s=start_s,
            end_s=end_s,
            busy_s=step_s,
            reasons=reasons,
            copies=copies,
            counts=counts,
        )

    @property
    def clock(self) -> StepClock | None:
        """Itself, if it is one device whose steps take as long whatever their positions are."""
        return None if self._handovers or any(self._windows) else self

    def num_plain(self, slots: Int32, starts: Int32) -> int:
        """How many further steps of these rows, from these positions on, end no answer."""
        return self._answers.num_plain(slots, starts)

    def decode(self, now: float, work: StepWork) -> Flying:
        """Take the plan of a step of decodes without copies, as `compute` does."""
        num_decodes = work.num_decodes
        if num_decodes != self._num_decodes:
            self._num_decodes, self._decodes_s = num_decodes, self._cost.decodes_s(num_decodes)
            self._decodes_power = self._power.of_decodes(num_decodes)
        slowdown, watts, is_capped = self._decodes_power
        step_s = self._decodes_s(work.decode_context) * self._noise.factor() * slowdown
        free = self._stage_free_s
        start_s = max(now + self._gap_s, free[0] + self._turn_s)
        free[0] = end_s = start_s + step_s
        self._power.spend_decodes(step_s, watts, is_capped)
        return Flying(start_s, end_s, step_s, work)

    def least_s(self, num_steps: int) -> float:
        """A quarter of the shortest step's time: tables of step times may dip, but less."""
        return LEAST_SHARE * self._alone_s * self._noise.least(num_steps)

    @property
    def computed_s(self) -> float:
        """The time at which all its plans are computed."""
        return self._stage_free_s[-1]

    def copied_s(self, places: Int32) -> float:
        """The time at which the last copy to these blocks of its host pool is done."""
        return self._copies.arrived_s(places)

    def warm_step_s(self) -> float:
        """Time of one decode of one sequence, as a worker reports when it is ready."""
        return self._cost.step_s(StepWork(1, 1, (), 1)) * self._profile.pp

    @property
    def most_times(self) -> int:
        """The profile's value."""
        return self._profile.most_times

    @property
    def row_s(self) -> float:
        """Zero: a profile does not tell it apart."""
        return 0.0

    @property
    def same_until(self) -> tuple[int, ...]:
        """None: a profile's steps compute alike."""
        return ()

    def warm_token_s(self) -> float:
        """The time that one prompt token adds to a step, as the worker reports then."""
        prompt_s = self._cost.step_s(StepWork(0, 0, ((_WARM_TOKENS, 0),), 1)) * self._profile.pp
        return max(0.0, prompt_s - self.warm_step_s()) / _WARM_TOKENS

    def energy_j(self, run_s: float) -> float | None:
        """Energy of its devices over the run; None where the profile has no power figures."""
        return self._power.energy_j(run_s)

    @property
    def capped_s(self) -> float:
        """The steps' time in which the power cap bound."""
        return self._power.capped_s

    def clear(self, now: float) -> None:
        """Drop all steps and copies: the process died."""
        self._stage_free_s = [now] * self._profile.pp
        for link in self._handovers:
            link.clear(now)
        self._copies.clear(now)

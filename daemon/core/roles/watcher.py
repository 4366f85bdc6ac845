"""The watcher of roles: it looks at the load every few seconds, and sets instances' roles.

It sees what the Core sees, in events' time, and flips through `Migrator` as an operator does. An
instance whose role was written in the configuration, or chosen by the operator, is pinned: it keeps
that role.
"""

from typing import Protocol

import msgspec

from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.migration.migration import Migrator
from daemon.core.roles.choices import (
    LEAST_STEPS,
    are_alike,
    are_linked,
    assigned,
    bending,
    fleets,
    mixed,
    present,
    splits,
)
from daemon.core.values.actions import Action, Noted, Rejected
from daemon.core.values.events import Configured, FlipOrdered, RequestArrived, RolesChosen
from daemon.core.values.snapshot import Counters, RolesExpected, RolesStatus
from daemon.core.wakes import NEVER
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.roles.decide import MIXED, Decided, Decider, DeciderState
from daemon.roles.forecast import Forecast, mean_forecast
from daemon.roles.kaplan_meier import Answer
from daemon.roles.load import OfferedLoad
from daemon.roles.search import searched
from daemon.roles.transition import BusyState, BusyWindow, InstanceLoad, transition
from daemon.roles.window import LoadWindow, WindowState
from daemon.state.request import FinishReason
from daemon.state.role import AUTO, TRANSITIONS, WATCHED, Role
from daemon.state.sequence import Sequence
from daemon.state.slo import Slo

REMEMBERED = 0.9999
"""The factor by which older steps lose weight with each step: minutes, so many batches are seen."""
HORIZON_S = 300.0
MOVED_MISSES = 0.5
"""The share of the answers moved by a change that is assumed to miss its SLO; a change has to make
up for them within the horizon."""


HINDERED_S = 60.0
"""The time after which roles without a possible choice become mixed: most links come back before.
"""
UNSERVABLE = frozenset(("draining", "too_long", "not_ready"))
"""Refusals that are no load: no choice of roles could have served these requests."""


class WatcherState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a watcher."""

    mode: str
    pinned: list[int]
    due_s: float
    window: WindowState
    decider: DeciderState
    drawing: tuple[float, ...]
    prompts: tuple[float, ...]
    usable: list[int]
    counted: tuple[int, int, int]
    num_shared: int
    decided: Decided
    decided_s: float
    expected: list[Forecast]
    busy: BusyState | None = None  # None, in an older journal: no rule was in force
    ordered: list[int] = []  # likewise


class WatchedCore(Protocol):
    """The part of the Core that the watcher uses."""

    config: Configured
    instances: list[Instance]
    sequences: dict[int, Sequence]
    counters: Counters
    migrator: Migrator

    def act(self, action: Action) -> None:
        """Have the driver do something."""


class Watcher:
    """Decides on roles where there are several instances and the configuration says so."""

    def __init__(self, core: WatchedCore) -> None:
        self._core = core
        self._slo = Slo(core.config.slo_ttft_s, core.config.slo_tpot_s)
        self.mode = core.config.roles
        self.pinned = _pinned(core.config)
        self.ordered: set[int] = set()  # instances whose roles an operator chose
        self.due_s = NEVER  # of the next look
        self._window = LoadWindow()
        self._decider = Decider()
        self._decoding = StepTimeModel(memory=REMEMBERED)  # of steps with decodes
        self._prompts = StepTimeModel(memory=REMEMBERED)  # of steps without
        self._usable: list[int] = []
        self._linked: tuple[tuple[int, list[int]], bool] = (-1, []), False
        # (prompt tokens, cached ones, `_num_shared`) before the present load.
        self._counted = 0, 0, 0
        self._num_shared = 0  # prompt tokens that further answers of a request share with its first
        self._decided = Decided(MIXED, "nothing was seen yet")
        self._decided_s = core.config.now
        self._expected: list[Forecast] = []
        self._busy = BusyWindow(len(core.instances))

    @property
    def is_known(self) -> bool:
        """Whether its state differs from that of a configuration without it."""
        return bool(self.mode or self.ordered or self.pinned != _pinned(self._core.config))

    @property
    def kept(self) -> set[int]:
        """The instances whose roles no other part of the Core changes: those that an operator
        chose, and those that forecasts choose.
        """
        chosen = set(range(len(self._core.instances))) - self.pinned if self.mode == AUTO else set()
        return self.ordered | chosen

    @property
    def on(self) -> bool:
        """Whether it watches."""
        return self.mode in WATCHED and len(self._core.instances) > 1

    # Notes

    def on_chosen(self, event: RolesChosen) -> None:
        """Decide for all instances, or leave roles as configured, by the operator's order. A rule
        goes on from the roles that there are.
        """
        self.mode, self.pinned, self.due_s = event.mode, set(), NEVER
        self.ordered.clear()
        self._window, self._decider = LoadWindow(), Decider()
        self._busy = BusyWindow(len(self._core.instances))
        self._decided, self._expected = Decided(MIXED, "nothing was seen yet"), []
        self._decided_s = event.now
        if event.mode not in WATCHED:
            for instance in self._core.instances:
                self._flip(instance, instance.config.role, event.now, "operator")

    def on_flip(self, event: FlipOrdered) -> None:
        """Pin the role of an instance that the operator chose."""
        self.pinned.add(event.instance)
        self.ordered.add(event.instance)
        self._core.migrator.on_flip(event)
        self._busy.since_s[event.instance] = event.now
        if self._window.since_s >= 0.0:
            self._decider.begin(event.now)

    def arrived(self, event: RequestArrived, refusal: Rejected | None) -> None:
        """Note a request."""
        if refusal is not None and refusal.kind in UNSERVABLE:
            return
        if self.mode in TRANSITIONS:
            if self._busy.edge_s < 0.0:
                self._busy.begin(event.now)
                self.due_s = self._busy.edge_s
            return
        self._window.arrived(event.now, event.num_prompt_tokens, event.n)
        if self.due_s == NEVER:
            self.due_s = self._window.edge_s
            self._usable = [
                instance.index for instance in self._core.instances if _is_usable(instance)
            ]
            self._begin(event.now)
        if refusal is None:
            self._num_shared += (event.n - 1) * event.num_prompt_tokens
        else:
            self._decider.ended(event.now, False, self._present())

    def stepped(self, instance: Instance, work: StepWork, elapsed_s: float) -> None:
        """Learn from a step's time."""
        if self.mode in TRANSITIONS:
            if self._busy.edge_s >= 0.0:
                self._busy.worked(instance.index, elapsed_s)
            return
        (self._decoding if work.num_decodes else self._prompts).observe(work, elapsed_s)

    def ended(self, sequence: Sequence, reason: int, now: float) -> None:
        """Note an ended answer. One whose client left counts for no length, and for the SLO only
        where it was broken by then: else impatient clients would make a choice look better.
        """
        if self.mode in TRANSITIONS:
            return
        num = sequence.num_output_tokens
        kept = reason != FinishReason.ERROR and self._keeps(sequence, num, now)
        if reason != FinishReason.ABORT:
            kept &= sequence.first_token_s >= 0.0
            self._window.ended(now, sequence.arrived_s, sequence.num_prompt_tokens, num)
        elif kept:
            return
        self._decider.ended(sequence.arrived_s, kept, self._present())

    def _keeps(self, sequence: Sequence, num_tokens: int, now: float) -> bool:
        """Whether an answer has met both SLOs so far."""
        config, first_s = self._core.config, sequence.first_token_s
        began_s = first_s if first_s >= 0.0 else now
        if began_s - sequence.arrived_s > config.slo_ttft_s:
            return False
        return num_tokens < 2 or now - first_s <= config.slo_tpot_s * (num_tokens - 1)

    def slo(self, instance: Instance) -> Slo | None:
        """The SLO that an instance's steps keep by shorter prompt chunks; None: chunks are as
        configured. At a prefill instance no answer waits beside prompts.
        """
        chooses = self.mode == AUTO and self.on and instance.config.chunk_is_own
        return self._slo if chooses and instance.role is not Role.PREFILL else None

    # Decisions

    def look(self, now: float) -> None:
        """Close past buckets, and decide if it is time to."""
        if self.mode in TRANSITIONS:
            self._apply_rule(now)
            return
        changed = self._window.close(now)
        self.due_s = self._window.edge_s
        usable = [instance for instance in self._core.instances if _is_usable(instance)]
        indices = [instance.index for instance in usable]
        if changed or indices != self._usable:
            self._usable = indices
            self._begin(self._window.since_s if changed else now)
        if not self._decider.enough(now, self._window.num_requests):
            return
        here = self._present()
        decided = self._decide(usable, here, now)
        if decided is not None:
            if decided.choice != here:
                self._change(decided, usable, now)
            self._say(decided, now)

    def _apply_rule(self, now: float) -> None:
        """Change the role of one instance, if the rule says so."""
        usable = [instance for instance in self._core.instances if _is_usable(instance)]
        loads = [
            InstanceLoad(
                instance.config.name,
                instance.role,
                self._busy.share(instance.index),
                now - self._busy.since_s[instance.index],
                instance.index not in self.pinned,
            )
            for instance in usable
        ]
        found = transition(self.mode, loads)
        if found is not None:
            instance = usable[found.place]
            line = f"{instance.config.name} becomes {found.role}: {found.why}"
            self._busy.since_s[instance.index] = now
            self._flip(instance, found.role, now, f"{self.mode}: {found.why}")
            self._core.act(Noted(f"roles: {line}"))
            self._say(Decided(self._present(), line), now)
        self._busy.close(now)
        self.due_s = self._busy.edge_s if self._busy.edge_s >= 0.0 else NEVER

    def _decide(self, usable: list[Instance], here: str, now: float) -> Decided | None:
        """The choice to make; None: nothing can be chosen, which was noted."""
        why_not = "" if here == MIXED else self._hindered(usable)
        if not why_not:  # mixed instances stay mixed whatever hinders a choice
            if decided := self._decider.without(now, here, self._expected):
                return decided
            why_not = self._hindered(usable)
        load = None if why_not else self._load()
        if load is None:
            self._say(Decided(here, why_not or "no answer has ended yet"), now)
            if why_not and now - self._decided_s >= HINDERED_S:
                self._leave_behind(usable, why_not, now)
            return None
        self._expected = self._forecasts(usable, load, here)
        moved = sum(instance.scheduler.num_running for instance in self._free(usable)) / 2.0
        cost = MOVED_MISSES * moved / max(1.0, load.answer_rate * HORIZON_S)
        return self._decider.look(now, here, self._expected, cost)

    def status(self, now: float) -> RolesStatus:
        """Its part of a snapshot."""
        names = [instance.config.name for instance in self._core.instances]
        here = self._present()
        measured = self._decider.measured(here)
        return RolesStatus(
            mode=self.mode or "mixed",
            present=here or "undecided",
            pinned=tuple(names[index] for index in sorted(self.pinned)),
            decision=self._decided.why + self._chunks() if self.on else "",
            age_s=now - self._decided_s,
            expected=tuple(
                RolesExpected(*msgspec.structs.astuple(expected)) for expected in self._expected
            ),
            measured=measured.share,
            num_measured=measured.num,
        )

    def _chunks(self) -> str:
        """The bounds of chunks that the SLO chooses; empty: none are chosen."""
        return bending(self._core.instances) if self.mode == AUTO else ""

    def _begin(self, since_s: float) -> None:
        self._decider.begin(since_s)
        counters = self._core.counters
        self._counted = counters.prompt_tokens, counters.cached_tokens, self._num_shared

    def _free(self, usable: list[Instance]) -> list[Instance]:
        return [instance for instance in usable if instance.index not in self.pinned]

    def _present(self) -> str:
        usable = [instance for instance in self._core.instances if _is_usable(instance)]
        return present(self._free(usable), usable)

    def _hindered(self, usable: list[Instance]) -> str:
        """The reason why nothing can be chosen; empty: something can."""
        if not splits(usable, self.pinned):
            return "no other roles are possible"
        if not are_alike(usable):
            return "the instances are of different kinds"
        if not self._are_linked(usable):
            return "not all instances are linked"
        if self._decoding.num_observed < LEAST_STEPS:
            return "too few steps were seen"
        return ""

    def _are_linked(self, usable: list[Instance]) -> bool:
        """Whether all usable instances are linked: n^2 links, looked at only after a change."""
        links = self._core.migrator.transfers.links
        asked = links.num_changes, [instance.index for instance in usable]
        if asked != self._linked[0]:
            self._linked = asked, are_linked(usable, links)
        return self._linked[1]

    def _load(self) -> OfferedLoad | None:
        counters = self._core.counters
        num_prompt = counters.prompt_tokens - self._counted[0]
        num_cached = counters.cached_tokens - self._counted[1]
        num_cached -= self._num_shared - self._counted[2]
        return self._window.load(self._unended(), num_cached / num_prompt if num_prompt else 0.0)

    def _unended(self) -> list[Answer]:
        """Answers of the present load that have begun and not ended: others, perhaps thousands,
        tell nothing of lengths.
        """
        since_s, found = self._window.since_s, []
        for home in self._core.instances:
            running, waiting = home.scheduler.running, home.scheduler.waiting
            for sequence, delivered in zip(
                running.sequences, running.delivered.tolist(), strict=True
            ):
                if sequence.arrived_s >= since_s:
                    num_prompt = sequence.num_prompt_tokens
                    found.append((num_prompt, delivered - num_prompt))
            if waiting.num_begun:
                found.extend(
                    (begun.num_prompt_tokens, begun.num_output_tokens)
                    for begun in waiting.begun()
                    if begun.arrived_s >= since_s
                )
        return found

    def _forecasts(self, usable: list[Instance], load: OfferedLoad, here: str) -> list[Forecast]:
        """The forecasts of mixed, then of splits."""
        links, slo = self._core.migrator.transfers.links, self._slo
        known = fleets(usable, self._decoding, self._prompts, links, load)
        first = mean_forecast(load, known, slo, mixed(usable, self.pinned))
        return [
            msgspec.structs.replace(first, choice=MIXED),
            *searched(
                splits(usable, self.pinned),
                lambda split: mean_forecast(load, known, slo, split),
                here,
            ),
        ]

    def _change(self, decided: Decided, usable: list[Instance], now: float) -> None:
        line = f"{decided.choice}: {decided.why}"
        for instance, role in assigned(decided.choice, self._free(usable), usable):
            self._flip(instance, role, now, f"auto: {line}")
        self._core.act(Noted(f"roles: {line}"))

    def _leave_behind(self, usable: list[Instance], why_not: str, now: float) -> None:
        """Make instances mixed, where nothing can be chosen any more."""
        if self._free(usable) and self._present() != MIXED:
            self._change(Decided(self._decider.mix(now), why_not), usable, now)

    def _flip(self, instance: Instance, role: Role, now: float, why: str) -> None:
        if role is not instance.role:
            self._core.migrator.on_flip(FlipOrdered(now, instance.index, role, why))

    def _say(self, decided: Decided, now: float) -> None:
        if decided != self._decided:
            self._decided, self._decided_s = decided, now

    # Checkpoints

    def state(self) -> WatcherState:
        """The state of this watcher."""
        return WatcherState(
            mode=self.mode,
            pinned=sorted(self.pinned),
            due_s=self.due_s,
            window=self._window.state(),
            decider=msgspec.convert(msgspec.to_builtins(self._decider.state), DeciderState),
            drawing=self._decoding.state(),
            prompts=self._prompts.state(),
            usable=list(self._usable),
            counted=self._counted,
            num_shared=self._num_shared,
            decided=self._decided,
            decided_s=self._decided_s,
            expected=list(self._expected),
            busy=self._busy.state() if self.mode in TRANSITIONS else None,
            ordered=sorted(self.ordered),
        )

    def restore(self, state: WatcherState) -> None:
        """Restore a state."""
        self.mode, self.pinned, self.due_s = state.mode, set(state.pinned), state.due_s
        self._window = LoadWindow.restored(state.window)
        self._decider = Decider(msgspec.convert(msgspec.to_builtins(state.decider), DeciderState))
        self._decoding = StepTimeModel.restored(state.drawing)
        self._prompts = StepTimeModel.restored(state.prompts)
        self._usable, self._counted = list(state.usable), state.counted
        self._num_shared = state.num_shared
        self._decided, self._decided_s = state.decided, state.decided_s
        self._expected = list(state.expected)
        self.ordered = set(state.ordered)
        if state.busy is not None:
            self._busy = BusyWindow.restored(state.busy)


def _pinned(config: Configured) -> set[int]:
    """The instances whose roles were written in the configuration. A rule begins with these roles
    and may change them.
    """
    if config.roles in TRANSITIONS:
        return set()
    return {index for index, own in enumerate(config.instances) if own.role is not Role.MIXED}


def _is_usable(instance: Instance) -> bool:
    return instance.state is WorkerState.READY and not instance.drained

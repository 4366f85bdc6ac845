"""`python -m daemon.lab.autoplan.process --fd N ...`: started by the daemon under `plan.auto`.

It runs at idle priority, reads the journal and the control socket, and gives an operator's orders
there. Any error is told as a note, and the next look tries again.
"""

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from daemon.base import logs
from daemon.config.instance_text import parse_instance
from daemon.control.client import (
    ControlError,
    choose_budget,
    choose_policy,
    choose_roles,
    fetch_snapshot,
    flip,
)
from daemon.core.values.events import FlipOrdered
from daemon.journal.reader import JournalError
from daemon.journal.records import FILE_NAME
from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.from_journal import seen_in
from daemon.lab.autoplan.search import SettingsSearch
from daemon.lab.autoplan.settings import LiveOrder, LiveSettings, orders, smaller_budgets
from daemon.lab.planner.candidate import CandidatePool, unit_of
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.from_journal import present
from daemon.lab.profiler.refit import LEAST_OBSERVATIONS, observations, refit_to
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.simulator.journal import Incident, read_incident
from daemon.lab.simulator.scenario import ScenarioError, ScenarioLimits
from daemon.lab.workload.workload import WorkloadError
from daemon.protocol.control import ChooseBudget, ChoosePolicy, ChooseRoles, Flip, Snapshot
from daemon.protocol.plan import PlanStatus
from daemon.state.role import AUTO, Role
from daemon.state.slo import Slo
from daemon.wire.frames import inline_frame
from daemon.wire.parent import die_with_parent

log = logging.getLogger(__name__)

POLICIES = ("gittins", "sarathi", "vllm")
"""Policies to choose from, beside the present one."""
NEWEST_STEPS = 5000
"""Steps of a journal that a profile is fitted to: a fit of so many takes a second or two."""
_TIMEOUT_S = 10.0
_BY_HAND = FlipOrdered(0.0, 0, Role.MIXED).why
"""Why a flip came that `llmd ctl` ordered; those of the Core say something else."""
_EXPECTED = (
    *(ControlError, JournalError, PlannerError, ProfileError, ScenarioError, WorkloadError),
    OSError,
)


def main() -> int:
    """Look and plan until the daemon hangs up; the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.lab.autoplan.process")
    parser.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    parser.add_argument("--socket", type=Path, required=True, help="the control socket")
    parser.add_argument("--journal", type=Path, required=True, help="the journal's folder")
    parser.add_argument("--profile", required=True, help="of one instance: a name or a file")
    parser.add_argument("--period-s", type=float, required=True)
    parser.add_argument("--slo-ttft", type=float, required=True)
    parser.add_argument("--slo-tpot", type=float, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.fd)
    _be_idle()
    logs.set_up("planner")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))  # the folder is removed
    sock = socket.socket(fileno=arguments.fd)
    with TemporaryDirectory() as folder:
        LivePlanner(arguments, Path(folder), sock).run()
    return 0


def _be_idle() -> None:
    """Have the kernel run this process only where nobody else would run."""
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class LivePlanner:
    """A self-driver on a real daemon's journal and socket; plans are told over `sock`."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        folder: Path,
        sock: socket.socket,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is that of the journal's times."""
        self._arguments, self._folder, self._sock = arguments, folder, sock
        self._clock, self._note = clock, ""
        self._slo = Slo(arguments.slo_ttft, arguments.slo_tpot)
        self._look_s = 1.0
        self._driver: SelfDriver | None = None
        self._incident: Incident | None = None
        self._fits = 0
        self._names: list[str] = []
        self._left: LiveSettings | None = None  # where a refused order left the daemon

    def run(self) -> None:
        """Look now and then until the daemon hangs up."""
        self._sock.settimeout(self._look_s)
        while not self._is_over():
            try:
                note = self.look()
            except _EXPECTED as error:
                note = " ".join(str(error).split())
            if note != self._note:
                self._tell(note)

    def _is_over(self) -> bool:
        """Wait until the next look; whether the daemon hung up meanwhile."""
        self._sock.settimeout(self._look_s)
        try:
            return not self._sock.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    def look(self) -> str:
        """Look once, and give the orders; what there is to say."""
        snapshot = fetch_snapshot(self._arguments.socket, _TIMEOUT_S)
        if not snapshot.ready:
            return "the daemon is not ready"
        incident = self._incident = read_incident(self._arguments.journal / FILE_NAME)
        here = settings_of(snapshot)
        if self._driver is None or self._names != [each.name for each in snapshot.instances]:
            self._driver = self._begun(snapshot, incident, here)
        driver, pilot = self._driver, self._driver.pilot
        left, self._left = self._left, None
        if pilot.present != here:
            if here == left:
                self._carry_out(orders(here, pilot.present, self._names))
                here = pilot.present
            elif only_flipped_by_itself(snapshot, pilot.present, here):
                pilot.daemon_flipped(here)
            else:
                pilot.operator_chose(here)
                driver.may_split = may_split(snapshot)
        now = self._clock()
        found = driver.look(now, seen_in(incident, self._slo, now))
        if found and settings_of(fetch_snapshot(self._arguments.socket, _TIMEOUT_S)) != here:
            pilot.drop_plan()
            return "the settings were changed during the search: its plan is dropped"
        if found:
            self._give_plan(found, driver)
            driver.given(self._clock())
        return driver.note

    def _give_plan(self, found: Sequence[LiveOrder], driver: SelfDriver) -> None:
        """Give a plan's orders, all or none: those before a refused one are taken back. Where that
        is refused as well, the next look tries again. Raises ControlError.
        """
        try:
            self._carry_out(found)
        except ControlError:
            driver.pilot.refuse_plan(self._clock())
            left, self._left = self._left, None
            if left is not None:
                self._carry_out(orders(left, driver.pilot.present, self._names))
            raise

    def _carry_out(self, found: Sequence[LiveOrder]) -> None:
        """Give orders; keep where a refused one leaves the daemon. Raises ControlError."""
        try:
            for order in found:
                self._give(order)
        except ControlError:
            self._left = settings_of(fetch_snapshot(self._arguments.socket, _TIMEOUT_S))
            raise

    def _begun(self, snapshot: Snapshot, incident: Incident, here: LiveSettings) -> SelfDriver:
        unit = unit_of(self._arguments.profile)
        own = present(incident, unit).knobs
        is_open = all(each.budget_is_own for each in incident.config.instances)
        asked_tokens = 0 if is_open else own.max_batch_tokens
        knobs = msgspec.structs.replace(
            own, policy="", prefill_chunk=0, max_batch_tokens=asked_tokens
        )
        search = SettingsSearch(
            unit,
            knobs,
            self._slo,
            self._folder,
            limits=ScenarioLimits(block_size=snapshot.block_size, max_len=snapshot.max_len),
            refitted=self._refitted,
        )
        self._names = [each.name for each in snapshot.instances]
        policies = tuple(dict.fromkeys((here.policy, *POLICIES)))
        period_s = self._arguments.period_s
        splits = may_split(snapshot)
        budgets = smaller_budgets(own.max_batch_tokens)
        driver = SelfDriver(here, self._names, policies, search, period_s, splits, budgets)
        self._look_s = driver.look_s
        return driver

    def _refitted(self) -> CandidatePool:
        """The profile with the step times that the newest steps had: a daemon's own processes, and
        others, share the cores that the profile had to itself. As it is, where they are too few.
        """
        name, incident = self._arguments.profile, self._incident
        if incident is None:
            return unit_of(name)
        newest = replace(incident, steps=incident.steps[-NEWEST_STEPS:])
        if len(observations(newest)) < LEAST_OBSERVATIONS:
            return unit_of(name)
        self._fits += 1
        path = self._folder / f"refitted-{self._fits}.json"  # a file is read once
        save_profile(refit_to(load_profile(name), newest).profile, path)
        return unit_of(str(path))

    def _give(self, order: LiveOrder) -> None:
        """Send an order, as `llmd ctl` does. Raises ControlError."""
        path = self._arguments.socket
        log.info("plan: %s", order)
        match order:
            case ChoosePolicy():
                choose_policy(path, order.policy, _TIMEOUT_S)
            case ChooseBudget():
                choose_budget(path, order.tokens, _TIMEOUT_S)
            case ChooseRoles():
                choose_roles(path, order.mode, _TIMEOUT_S)
            case Flip():
                flip(path, order.instance, order.role, _TIMEOUT_S, order.wait_s)

    def status(self, note: str) -> PlanStatus:
        """The state of the plan, for viewers."""
        return PlanStatus(note=note) if self._driver is None else self._driver.status(note)

    def _tell(self, note: str) -> None:
        self._note = note
        with contextlib.suppress(OSError):
            self._sock.sendall(inline_frame(msgspec.msgpack.encode(self.status(note))))


def settings_of(snapshot: Snapshot) -> LiveSettings:
    """The settings in force. Raises PlannerError for those that no plan has."""
    policies = {each.policy for each in snapshot.instances}
    if len(policies) > 1:
        raise PlannerError("instances have policies of their own: there is nothing to choose")
    specs = [parse_instance(each.device) for each in snapshot.instances]
    if len({(each.device.partition(":")[0], each.parallel) for each in specs}) > 1:
        raise PlannerError("instances of unlike devices are not planned: one profile has to do")
    budgets = {each.chosen_budget or 0 for each in snapshot.instances}
    if len(budgets) > 1:
        raise PlannerError("instances have budgets of their own: there is nothing to choose")
    mode = AUTO if snapshot.roles.mode == AUTO else Role.MIXED.value
    roles = tuple(Role.MIXED if mode == AUTO else each.role for each in snapshot.instances)
    return LiveSettings(policy=policies.pop(), roles=roles, mode=mode, budget=budgets.pop())


def only_flipped_by_itself(snapshot: Snapshot, before: LiveSettings, here: LiveSettings) -> bool:
    """Whether nothing but roles differs, each by a flip that the daemon ordered itself: an instance
    that did the other role's work for long goes to its pool (`daemon/core/roles/mixed_pool.py`).
    """
    if msgspec.structs.replace(before, roles=here.roles) != here:
        return False
    if len(before.roles) != len(here.roles):
        return False
    newest = {flip.instance: flip for flip in snapshot.flips}  # the oldest are the first
    changed = [
        newest.get(each.name)
        for each, was, now in zip(snapshot.instances, before.roles, here.roles, strict=True)
        if was is not now
    ]
    return all(flip is not None and flip.why != _BY_HAND for flip in changed)


def may_split(snapshot: Snapshot) -> bool:
    """Whether a plan may give roles: no hand has set one."""
    if snapshot.roles.mode == AUTO:
        return not snapshot.roles.pinned
    return all(each.role is Role.MIXED for each in snapshot.instances)


if __name__ == "__main__":
    sys.exit(main())

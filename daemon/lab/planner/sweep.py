"""Many scenarios on all cores: over rates, policies and profiles."""

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from daemon.lab.planner.capacity import find_capacity
from daemon.lab.planner.goal import Goal
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.wire.parent import die_with_parent


class Key(NamedTuple):
    """A point of a sweep."""

    profile: str
    policy: str
    rate_rps: float


class SweepRow(NamedTuple):
    """One point: its report, or its error."""

    key: Key
    report: Report | None
    error: str = ""


def grid(
    scenario: Scenario,
    rates: Sequence[float] = (),
    policies: Sequence[str] = (),
    profiles: Sequence[str] = (),
) -> dict[Key, Scenario]:
    """Every combination, profiles outermost; an empty axis keeps the scenario's own value.

    A profile takes the place of every instance group's, whose counts and KV sizes stay.
    """
    own = ", ".join(group.profile for group in scenario.instance)
    points: dict[Key, Scenario] = {}
    for profile in profiles or (own,):
        groups = scenario.instance
        if profiles:
            groups = tuple(msgspec.structs.replace(group, profile=profile) for group in groups)
        for policy in policies or (scenario.policy,):
            for rate in rates or (scenario.workload.rate,):
                spec = scenario.workload
                if rates:
                    spec = msgspec.structs.replace(spec, rate=rate, rate_scale=0.0)
                points[Key(profile, policy, rate)] = msgspec.structs.replace(
                    scenario, workload=spec, instance=groups, policy=policy
                )
    return points


def sweep(
    scenarios: Mapping[Key, Scenario], workers: int = 0, goal: Goal | None = None
) -> Iterator[SweepRow]:
    """Simulate every point, each in a process; rows come as they are done (`table` orders them).

    With a goal, each point is a search for its capacity. `workers` 0: one for each core. A point
    that fails is a row with its error, and the others go on. Leaving the iterator early kills the
    running processes. Processes are spawned: a script that calls this needs a `__main__` guard.
    """
    count = min(workers or len(os.sched_getaffinity(0)), max(1, len(scenarios)))
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a worker inherits no locks, threads or open files of the caller.
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=die_with_parent,
    )
    try:
        with deaf_to_the_terminal():
            points = {
                pool.submit(_simulate, scenario, goal): key for key, scenario in scenarios.items()
            }
        for done in as_completed(points):
            yield _row(points[done], done)
    except BaseException:  # a signal, or the caller left: the other rows are not waited for
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def deaf_to_the_terminal() -> Iterator[None]:
    """Block Ctrl-C in processes started meanwhile: their parent receives it, and ends them."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def table(scenarios: Mapping[Key, Scenario], rows: Iterable[SweepRow]) -> list[SweepRow]:
    """The rows in the order of the scenarios, whichever was done first."""
    place = {key: index for index, key in enumerate(scenarios)}
    return sorted(rows, key=lambda row: place[row.key])


def _simulate(scenario: Scenario, goal: Goal | None) -> Report:
    if goal is not None:
        return find_capacity(scenario, goal).as_report()
    prepared = prepare(scenario)
    return report_of(prepared, run(prepared))


def _row(key: Key, done: Future[Report]) -> SweepRow:
    error = done.exception()
    if error is None:
        return SweepRow(key, done.result())
    text = str(error)
    if not isinstance(error, ValueError):  # not one of llmd's own sentences
        text = f"{type(error).__name__}: {text}"
    return SweepRow(key, None, text)

"""Hostile workloads: everybody ends, memory is counted right, and pauses are short.

The workloads and what they are for stand in `benchmarks/studies/hostile.py`, which prints what is
not bounded here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from benchmarks.studies.hostile import BASE, SIZES, WORKLOADS, figures, made, table, tokens_per_s
from daemon.core.core import Core
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.memory.sizing import block_bytes
from daemon.scheduler.pace import SLICE_SHARE
from daemon.scheduler.policies import POLICIES
from tests.core.laws import check_laws, check_nothing_left

LAWS_EVERY = 128
"""Ledgers are counted after every event, and all else after so many."""

LEAST_SHARE = 0.97
"""Of the throughput of BASE."""

Cell = tuple[str, str]

_COLD = "until 48 answers have ended, each may grow by 256 tokens, and few begin"

SLOWER: dict[Cell, str] = {
    ("burst-500", "medium"): f"0.958: {_COLD}",
    ("burst-1000", "medium"): f"0.963: {_COLD}",
    ("slow-link", "large"): "0.969",
    ("one-context", "medium"): f"0.863: {_COLD}",
    ("one-context", "large"): "0.934: few run beside each other",
}
"""Where the throughput is less than its share, which it is and why."""


def cells(sizes: Sequence[str], known: dict[Cell, str]) -> Iterator[object]:
    """Workloads of these sizes; the largest under soak alone, and those that are known to fail."""
    for name, size in product(WORKLOADS, sizes):
        marks = [pytest.mark.soak] if size == "large" or name == "burst-1000" else []
        if why := known.get((name, size)):
            marks.append(pytest.mark.xfail(reason=why, strict=True))
        yield pytest.param(name, size, marks=marks, id=f"{name}-{size}")


@cache
def ran(name: str, size: str, policy: str) -> RunLog:
    """The log of a run."""
    return run(made(name, SIZES[size], policy), Options(spans=True))


BUSY = ("gittins", BASE)
"""Policies that all workloads are tried under in `make test` too."""


def small_cells() -> Iterator[object]:
    """The workloads of the smallest size, each under every policy; in `make test` under every third
    of them, so that each policy has some of each kind.
    """
    for (number, name), (place, policy) in product(enumerate(WORKLOADS), enumerate(POLICIES)):
        rest = policy not in BUSY and (name == "burst-500" or (number + place) % 3 != 0)
        rest = rest or name == "burst-1000"
        marks = [pytest.mark.soak] if rest else []
        yield pytest.param(name, policy, marks=marks, id=f"{name}-{policy}")


NEVER_PREEMPT = ("orca", "static")
BY_ARRIVAL = ("vllm", "sarathi", "priority")


@dataclass
class Watch:
    """Checks a run after each event, and ends one that goes round in circles."""

    most_events: int
    num_events: int = 0
    core: Core | None = None

    def __call__(self, core: Core) -> None:
        self.core = core
        self.num_events += 1
        assert self.num_events <= self.most_events, "the run goes round in circles"
        for instance in core.instances:
            kv, space = instance.scheduler.kv, instance.scheduler.residency.space
            kv.pool.check()
            kv.reservations.check(kv.pool.num_available)
            space.pool.check()
        if self.num_events % LAWS_EVERY == 0:
            check_laws(core)


def most_steps(log: RunLog, budget: int) -> int:
    """Steps where nobody runs beside another."""
    answers = log.requests
    return int(answers.asked_tokens.sum() + np.ceil(answers.prompt_tokens / budget).sum())


def watched(plan: Prepared) -> RunLog:
    """The log of a run that is checked after every event and at its end."""
    asked = plan.workload
    num_tokens = int(asked.prompt_tokens.sum()) + int(asked.output_tokens.sum())
    watch = Watch(most_events=8 * plan.scenario.n * num_tokens)
    log = run(plan, Options(after_event=watch))
    assert watch.core is not None
    check_laws(watch.core)
    check_nothing_left(watch.core)
    return log


@pytest.mark.parametrize(("name", "policy"), [*small_cells()])
def test_everybody_ends_and_memory_is_counted_right(name: str, policy: str) -> None:
    size = SIZES["small"]
    plan = made(name, size, policy)
    log = watched(plan)
    answers = log.requests
    assert (answers.outcome == Outcome.FINISHED).all()
    assert np.array_equal(answers.output_tokens, answers.asked_tokens)
    assert log.instances[0].steps <= most_steps(log, size.max_batch_tokens)
    if policy in NEVER_PREEMPT:
        assert not answers.preemptions.any()
    if policy in BY_ARRIVAL:
        assert not answers.preemptions[: plan.scenario.n].any(), "the first gave way to another"
    if policy == "gittins":  # each turn but the last is run to its end
        slice_s = SLICE_SHARE * size.max_pause_s
        most = 1.0 + (answers.last_s - answers.started_s) / slice_s
        assert (answers.preemptions <= most).all()


@pytest.mark.parametrize(("name", "size"), [*cells(["medium", "large"], {})])
def test_gittins_keeps_the_pace_of_streams_that_have_begun(name: str, size: str) -> None:
    plan, log = made(name, SIZES[size], "gittins"), ran(name, size, "gittins")
    step_s = max(one.duration_s for one in log.spans if one.name in ("prefill", "mixed", "decode"))
    gap_s = float(log.requests.gap_s.max(initial=0.0))
    assert gap_s <= SIZES[size].max_pause_s + step_s + move_s(plan, step_s)


def move_s(plan: Prepared, step_s: float) -> float:
    """The longest that a stream takes to give way and to come back: copied, or computed again."""
    (profile,), limits = plan.profiles, plan.scenario.limits
    num_bytes = block_bytes(profile.model, plan.max_len, profile.model.dtype)
    copies_s = 2 * num_bytes / profile.device.host_link.bytes_per_s
    computed_s = -(-plan.max_len // (limits.max_batch_tokens // 2)) * step_s  # beside others
    return max(copies_s, computed_s)


@pytest.mark.parametrize(("name", "size"), [*cells(["medium", "large"], SLOWER)])
def test_gittins_wastes_no_throughput(name: str, size: str) -> None:
    share = tokens_per_s(ran(name, size, "gittins")) / tokens_per_s(ran(name, size, BASE))
    assert share >= LEAST_SHARE


@pytest.mark.parametrize("policy", [BASE, "mlfq", "speculative", "srtf", "gittins"])
def test_nothing_is_copied_over_a_link_that_is_slower_than_computing_again(policy: str) -> None:
    """With many on their way back, each would wait for all of them."""
    log = ran("slow-link", "medium", policy)
    assert log.requests.preemptions.any() and not log.swaps


def test_the_table_has_a_row_for_each_policy_with_its_ratios() -> None:
    found = {one: figures(ran("giants", "medium", one)) for one in (BASE, "gittins")}
    _, base, other = table(found)
    assert base.split()[0] == BASE and base.count("1.00x") == 3
    share = found["gittins"].tokens_per_s / found[BASE].tokens_per_s
    assert other.split()[:3:2] == ["gittins", f"{share:.2f}x"]

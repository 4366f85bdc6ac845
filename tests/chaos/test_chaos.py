"""Faults at random under load: no text is lost, doubled or changed, and nothing is left behind.

`LLMD_CHAOS_SEED` chooses another seed; what a run did is printed.
"""

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from daemon.control.protocol import Snapshot
from tests.chaos.answers import Answer
from tests.chaos.cases import KINDS, Asker, Case, toy_folder
from tests.chaos.clients import Clients, undisturbed
from tests.chaos.daemons import (
    AMPLE,
    KV_BLOCKS,
    QUIET_S,
    TOY,
    check_ledgers,
    flags_of,
    marked,
    quiet,
    seed_of,
)
from tests.chaos.faults import Disturber
from tests.chaos.processes import Held, await_end, held, shared_memory
from tests.e2e.live import LiveDaemon

END_S = 10.0


class Plan(NamedTuple):
    """How much is asked, by how many, and what is done meanwhile."""

    cases: int
    most_tokens: int
    clients: int
    faults: dict[str, int]


SHORT = Plan(
    cases=len(KINDS),
    most_tokens=50,
    clients=16,
    faults={
        "worker killed": 6,
        "worker stopped": 1,
        "worker stopped a moment": 4,
        "API killed": 2,
        "API stopped": 1,
        "API stopped a moment": 1,
        "configuration": 3,
        "broken configuration": 2,
        "policy": 8,
        "drain and resume": 2,
    },
)
FULL = Plan(
    cases=8 * len(KINDS),
    most_tokens=150,
    clients=20,
    faults={
        "worker killed": 200,
        "worker stopped": 15,
        "worker stopped a moment": 35,
        "API killed": 25,
        "API stopped": 10,
        "API stopped a moment": 15,
        "configuration": 40,
        "broken configuration": 20,
        "policy": 100,
        "drain and resume": 30,
    },
)


async def settled(daemon: LiveDaemon, mark: str) -> dict[str, Held]:
    """What the processes hold once the spare is there and connections are closed."""
    await quiet(daemon)
    deadline_s = time.monotonic() + QUIET_S
    counts = held(mark)
    while time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
        before, counts = counts, held(mark)
        if counts == before and counts.get(TOY, Held(0, 0, 0)).processes == 3:
            return counts
    raise AssertionError(f"not settled: {counts}")


def check_leaks(before: dict[str, Held], after: dict[str, Held]) -> None:
    """The same processes, with no more open in each."""
    assert set(after) == set(before), (before, after)
    for name, one in after.items():
        was = before[name]
        assert one.processes == was.processes, (name, was, one)
        assert one.threads <= was.threads, (name, was, one)
        assert one.descriptors <= was.descriptors + 2, (name, was, one)


async def right_answers(folder: Path, config: Path, cases: list[Case]) -> list[Answer]:
    """Those of a daemon that has memory for all, and that nobody disturbs."""
    mark, env = marked()
    with LiveDaemon(*flags_of(folder, config, AMPLE), env=env) as daemon:
        answers = await undisturbed(daemon.url, cases, 4)
        seen = await quiet(daemon)
    assert await_end(mark, END_S) == {}
    assert seen.counters.preemptions == seen.counters.worker_deaths == 0
    return answers


async def soak(tmp_path: Path, plan: Plan, seed: int, swap: str) -> None:
    """The whole story of one daemon."""
    print(f"\nseed {seed}, swap {swap or 'as the policy has it'}")
    mark, env = marked()
    config = tmp_path / "llmd.toml"
    cases = Asker(seed, plan.most_tokens).cases(plan.cases)
    folder = toy_folder(tmp_path / "toy")
    expected = await right_answers(folder, config, cases)
    with LiveDaemon(*flags_of(folder, config, KV_BLOCKS, swap), env=env) as daemon:
        assert await undisturbed(daemon.url, cases, 4) == expected
        before, memory = await settled(daemon, mark), shared_memory(mark)
        disturber, clients = await disturbed(
            daemon, mark, config, list(zip(cases, expected, strict=True)), plan, seed
        )
        seen = await quiet(daemon)
        check_ledgers(seen)
        assert await undisturbed(daemon.url, cases, 4) == expected
        check_leaks(before, await settled(daemon, mark))
        assert shared_memory(mark) == memory
        log = daemon.text()
    tell(disturber, clients, seen)
    assert await_end(mark, END_S) == {}, "a process outlives its daemon"
    assert not clients.tally.wrong, "\n".join(clients.tally.wrong[:5])
    assert "the toy cannot go on" not in log and "Traceback" not in log, log
    assert seen.counters.failed == 0
    assert seen.counters.preemptions and seen.counters.swaps_in


async def disturbed(
    daemon: LiveDaemon,
    mark: str,
    config: Path,
    expected: list[tuple[Case, Answer]],
    plan: Plan,
    seed: int,
) -> tuple[Disturber, Clients]:
    """Clients ask while the plan's faults happen, and finish what they have begun."""
    clients = Clients(daemon.url, expected, seed)
    disturber = Disturber(daemon, mark, TOY, config, clients, seed)
    asking = [asyncio.create_task(clients.live()) for _ in range(plan.clients)]
    try:
        await disturber.disturb(plan.faults)
    finally:
        clients.going = False
    await asyncio.gather(*asking)
    return disturber, clients


def tell(disturber: Disturber, clients: Clients, seen: Snapshot) -> None:
    """What the run did and saw."""
    print(f"faults: {dict(disturber.done)}")
    print(f"answers: {dict(clients.tally.seen)}, {len(clients.tally.wrong)} wrong")
    print(f"by kind: {dict(clients.tally.kinds)}")
    print(f"longest wait for a piece: {clients.tally.longest_gap_s:.2f} s")
    for name, times in disturber.noticed_s.items():
        ordered = sorted(times)
        middle, most = ordered[len(ordered) // 2], ordered[-1]
        print(f"{name}, gone after: p50 {1e3 * middle:.0f} ms, most {1e3 * most:.0f} ms")
    one = seen.counters
    print(
        f"{one.worker_deaths} deaths, {one.preemptions} preemptions, {one.swaps_in} swaps in, "
        f"{one.recomputed_tokens} tokens recomputed, {one.output_tokens} drawn"
    )


async def test_faults_at_random_change_no_text(tmp_path: Path) -> None:
    await soak(tmp_path, SHORT, seed_of(1), "proactive")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "swap"), [(101, "proactive"), (102, "reactive"), (103, "")])
async def test_many_faults_at_random_change_no_text(tmp_path: Path, seed: int, swap: str) -> None:
    await soak(tmp_path, FULL, seed_of(seed), swap)

"""Faults at random under load: no text is lost, doubled or changed, and nothing is left behind.

`LLMD_CHAOS_SEED` chooses another seed; what a run did is printed.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from daemon.control.protocol import Snapshot
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.chaos.answers import Answer
from tests.chaos.cases import KINDS, MODEL, Asker, Case, toy_folder
from tests.chaos.clients import Clients, undisturbed
from tests.chaos.faults import Disturber
from tests.chaos.processes import MARK, Held, await_end, held, members, shared_memory
from tests.e2e.live import LiveDaemon
from tests.house.source import ROOT

TOY = "tests.chaos.worker"
KV_BLOCKS = 24
HOST_BLOCKS = 30
AMPLE = 2000
BLOCK_BYTES = 4096  # of the tiny model: 16 tokens, 2 layers, 2 heads of 8 numbers
QUIET_S = 30.0
END_S = 10.0


class Plan(NamedTuple):
    """How much is asked, by how many, and what is done meanwhile."""

    cases: int
    most_tokens: int
    clients: int
    faults: dict[str, int]


SHORT = Plan(
    cases=2 * len(KINDS),
    most_tokens=60,
    clients=16,
    faults={
        "worker killed": 6,
        "worker stopped": 1,
        "worker stopped a moment": 4,
        "API killed": 2,
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
        "API killed": 5,
        "configuration": 40,
        "broken configuration": 20,
        "policy": 100,
        "drain and resume": 30,
    },
)


def seed_of(default: int) -> int:
    """The run's seed."""
    return int(os.environ.get("LLMD_CHAOS_SEED", default))


def marked() -> tuple[str, dict[str, str]]:
    """A new mark, and the environment of a daemon with toys for workers that carries it."""
    mark = f"{os.getpid()}-{random.getrandbits(40)}"
    env = {MARK: mark, TEST_MODE: "1", WORKER: TOY, "PYTHONPATH": str(ROOT)}
    return mark, env


def flags_of(folder: Path, config: Path, kv_blocks: int, swap: str = "") -> list[str]:
    """Two workers, which may die as often as they like."""
    config.write_text("")
    settings = {
        "memory.host_bytes": HOST_BLOCKS * BLOCK_BYTES,
        "memory.kv_blocks": kv_blocks,
        "memory.swap": f'"{swap}"',
        "daemon.restarts": 100_000,
        "daemon.spare": "true",
        "scheduler.max_running": 16,
        "scheduler.prefill_chunk": 32,
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["--config", str(config), "--model", str(folder), "--set", f'model.name="{MODEL}"'] + [
        *flags,
        *("--instance", "cpu"),
        *("--instance", "cpu"),
    ]


async def quiet(daemon: LiveDaemon) -> Snapshot:
    """The daemon once nothing runs and both workers are there."""
    deadline_s = time.monotonic() + QUIET_S
    while True:
        seen = await asyncio.to_thread(daemon.snapshot)
        busy = seen.running or seen.waiting or any(one.steps_in_flight for one in seen.instances)
        if not busy and all(one.state == "ready" for one in seen.instances):
            return seen
        assert time.monotonic() < deadline_s, f"not quiet: {seen}"
        await asyncio.sleep(0.05)


def check_ledgers(seen: Snapshot) -> None:
    """Every block is free, or free to be taken."""
    assert not seen.sequences
    for one in seen.instances:
        assert one.kv_held == one.kv_fenced == one.host_held == 0, one
        assert one.kv_free == one.kv_blocks == KV_BLOCKS and one.kv_cached <= one.kv_free


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
    disturber: Disturber
    clients = Clients(daemon.url, expected, lambda: disturber.api_faults, seed)
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

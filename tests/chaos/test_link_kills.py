"""Workers that are killed in every state of a transfer: no token is lost, doubled or changed.

Times are printed, not asserted: they are the machine's affair.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from daemon.config.paths import default_cache
from daemon.models.embedded import EMBEDDED_NAME, model_folder
from daemon.supervisor.spare import WORKER
from tests.chaos.cases import KINDS, SHORT_KINDS, Asker, greedy_cases, toy_folder
from tests.chaos.daemons import Subject, embedded, seed_of, toys
from tests.chaos.linked_run import LINK_MS, Setting, asked_of, killed
from tests.chaos.movers import died, ready, strike_many
from tests.chaos.run import sure_cases
from tests.chaos.states import STATES, Kill
from tests.chaos.strikes import FOLDER, Order, Strike, Strikes
from tests.e2e.live import LiveDaemon

Way = tuple[str, bool]

WAYS: dict[Way, tuple[str, ...]] = {
    ("send", False): ("ahead, source", "tail, source"),
    ("send", True): ("ahead, target", "tail, target"),
    ("layers", False): ("layers, source",),
    ("layers", True): ("layers, target",),
    ("host", False): ("from host, source",),
    ("host", True): ("from host, target",),
    ("source answers", False): ("target has answered, source",),
    ("source answers", True): ("target has answered, target",),
    ("target answers", False): ("source has answered, target",),
    ("target answers", True): ("source has answered, source",),
    ("landed", False): ("landed",),
    ("meet", False): ("link being joined",),
    ("step", False): (
        *("frozen, source", "frozen, target", "moved again"),
        *("remote KV waits, source", "remote KV waits, target"),
    ),
}
"""Moments, whether the other worker dies than the one that comes there, and the states hit so."""
KILLS, MODEL_KILLS, MOST_KILLS = 900, 100, 2000
LEAST = 50
A_LIFE = 100


def tell(kills: list[Kill]) -> Counter[str]:
    """States and waits; in how many kills each state was found."""
    sums = Counter(state for kill in kills for state in kill.states)
    print("\n".join(f"{sums[state]:5} {state}" for state in STATES))
    waits_s = sorted(wait_s for kill in kills for wait_s in kill.onward_s)
    firsts_s = sorted(min(kill.onward_s) for kill in kills if kill.onward_s)
    for name, times_s in (("the first one", firsts_s), ("each", waits_s)):
        at = [times_s[min(len(times_s) - 1, int(q * len(times_s)))] for q in (0.5, 0.99)]
        print(
            f"{name} of those that ran there got a token {1e3 * at[0]:.0f} ms (p50), "
            f"{1e3 * at[1]:.0f} ms (p99) after the kill"
        )
    return sums


def orders_of(chance: random.Random, sums: Counter[str], count: int) -> list[Order]:
    """So many orders: each kind once as far as possible, the others for states that lack kills."""
    ways = list(WAYS)
    weights = [1 + sum(max(0, LEAST - sums[one]) for one in states) for states in WAYS.values()]
    chosen = ways[:count]
    chosen += chance.choices(ways, weights, k=count - len(chosen))
    chance.shuffle(chosen)
    return [Order(*way, chance.uniform(0.0, LINK_MS / 1e3)) for way in chosen]


async def struck(
    folder: Path,
    quick: dict[str, str],
    subject: Subject,
    seed: int,
    orders: list[Order],
    clients: int,
) -> list[Kill]:
    """Toys of one daemon, killed as ordered."""
    folder.mkdir()
    strikes = Strikes(folder)
    env = {**quick, FOLDER: str(folder)}
    linked = subject._replace(worker=quick[WORKER])
    asked = await asked_of(linked, folder / "alone.toml", env=env)

    async def strike(daemon: LiveDaemon) -> list[Strike]:
        await strike_many(daemon, strikes, orders)
        return strikes.done

    return await killed(Setting(linked, env, asked, clients), folder / "llmd.toml", strike, seed)


async def test_workers_killed_in_the_middle_of_transfers_cost_no_token(
    tmp_path: Path, quick: dict[str, str]
) -> None:
    seed = seed_of(11)
    cases = [one for one in Asker(seed, most_tokens=60).cases(18) if one.kind in SHORT_KINDS]
    subject = toys(toy_folder(tmp_path / "toy"), cases)
    orders = orders_of(random.Random(seed), Counter(), len(WAYS))
    kills = await struck(tmp_path / "run", quick, subject, seed, orders, clients=10)
    tell(kills)
    assert len(kills) >= len(WAYS), "one order at most found nobody to carry it out"


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_workers_killed_often_in_every_state(tmp_path: Path, quick: dict[str, str]) -> None:
    chance = random.Random(seed_of(12))
    folder = toy_folder(tmp_path / "toy")
    kills: list[Kill] = []
    sums: Counter[str] = Counter()
    while len(kills) < KILLS or min(sums[one] for one in STATES) < LEAST:
        assert len(kills) < MOST_KILLS, sums
        seed = chance.getrandbits(30)
        subject = toys(folder, Asker(seed, most_tokens=100).cases(2 * len(KINDS)))
        orders = orders_of(chance, sums, A_LIFE)
        run = tmp_path / f"run-{len(kills)}"
        kills += await struck(run, quick, subject, seed, orders, clients=14)
        sums = tell(kills)
    assert all(sums[one] >= LEAST for one in STATES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_workers_of_the_embedded_model_killed_while_blocks_move(tmp_path: Path) -> None:
    config, seed = tmp_path / "llmd.toml", seed_of(13)
    subject = embedded(model_folder("", default_cache()), greedy_cases(EMBEDDED_NAME, 30))
    subject = subject._replace(cases=await sure_cases(subject, config))
    asked = await asked_of(subject, config)
    chance = random.Random(seed)

    async def strike(daemon: LiveDaemon) -> list[Strike]:
        return [await strike_one(daemon, chance, count) for count in range(1, MODEL_KILLS + 1)]

    kills = await killed(Setting(subject, {}, asked, clients=6), config, strike, seed)
    tell(kills)
    assert len(kills) == MODEL_KILLS
    assert sum(bool(kill.states) for kill in kills) > MODEL_KILLS / 2


async def strike_one(daemon: LiveDaemon, chance: random.Random, count: int) -> Strike:
    """Kill a worker while something is on its way; the daemon has noticed."""
    await ready(daemon)
    await asyncio.sleep(chance.random())
    deadline_s = time.monotonic() + 2.0
    while time.monotonic() < deadline_s:
        seen = await asyncio.to_thread(daemon.snapshot)
        if seen.transfers or any(one.remote_kvs for one in seen.instances):
            break
    victim = chance.choice(worker_pids(daemon))
    strike = Strike(time.monotonic(), "outside", peer=False)
    os.kill(victim, signal.SIGKILL)
    await died(daemon, count)
    return strike


def worker_pids(daemon: LiveDaemon) -> list[int]:
    """The processes of the daemon's workers."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return [int(pid) for pid in pids if b"daemon.engine.worker.main" in words[pid]]

"""Random migrations of running, waiting and swapped-out sequences change no text."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.control.client import ControlError, migrate
from daemon.protocol.control import SequenceStatus, Snapshot
from tests.e2e.live import LiveDaemon
from tests.e2e.tiny import tiny_folder

KV_BLOCKS = 40
AT_ONCE = 16
SHORT, LONG = 25, 500
Body = dict[str, Any]


def bodies(model: str) -> list[Body]:
    """Requests, greedy or with a seed, of which a pool holds three or so."""
    chance = random.Random(3)
    made = []
    for index in range(16):
        prompt = [chance.randrange(4, 300) for _ in range(chance.choice([8, 40, 130, 300]))]
        body = {"model": model, "prompt": prompt, "max_tokens": 120, "ignore_eos": True}
        made.append({**body, "temperature": 0 if index % 3 else 0.8, "seed": index})
    return made


async def ask(session: aiohttp.ClientSession, body: Body) -> str:
    """What an answer says."""
    async with session.post("/v1/completions", json=body) as got:
        assert got.status == 200, await got.text()
        text: str = (await got.json())["choices"][0]["text"]
    return text


def kind(sequence: SequenceStatus) -> str:
    """Where a sequence is when it is ordered elsewhere."""
    if sequence.residency == "host":
        return "swapped out"
    return "running" if sequence.state in {"prefill", "decode"} else "waiting"


async def order(daemon: LiveDaemon, count: int, seed: int) -> Counter[str]:
    """So many migrations that were not refused, of the kind had least so far; each kind's."""
    chance, kinds = random.Random(seed), Counter[str]()
    while kinds.total() < count:
        seen = await asyncio.to_thread(daemon.snapshot)
        rarest = sorted(seen.sequences, key=lambda one: (kinds[kind(one)], chance.random()))
        if not rarest or not rarest[0].instance:
            await asyncio.sleep(0.01)
            continue
        chosen = rarest[0]
        target = next(one.name for one in seen.instances if one.name != chosen.instance)
        try:
            await asyncio.to_thread(migrate, daemon.socket, chosen.sequence, target, 10.0)
        except ControlError:  # it has ended, or is there already
            continue
        kinds[kind(chosen)] += 1
        await asyncio.sleep(chance.uniform(0.0, 0.03))
    return kinds


def check_left(seen: Snapshot) -> None:
    """Nothing is left of anyone."""
    for one in seen.instances:
        assert one.kv_free == one.kv_blocks == KV_BLOCKS, one
        assert one.host_held == 0


async def move_about(daemon: LiveDaemon, count: int, seed: int = 1) -> Counter[str]:
    """Ask the same with nobody disturbing, and again among migrations; how many of each kind."""
    asked = bodies(daemon.model()["id"])
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(daemon.url, connector=connector) as session:
        alone = [await ask(session, body) for body in asked]
        moving = asyncio.create_task(order(daemon, count, seed))
        while not moving.done():
            again = await asyncio.gather(*(ask(session, body) for body in asked))
            wrong = [index for index, text in enumerate(again) if text != alone[index]]
            assert not wrong, [(asked[index], alone[index], again[index]) for index in wrong]
        kinds = await moving
    seen = await asyncio.to_thread(daemon.idle_snapshot)
    print(kinds, seen.counters)
    check_left(seen)
    assert seen.counters.handoffs > 0
    assert seen.counters.handoffs_failed == 0
    return kinds


def started(folder: Path) -> LiveDaemon:
    """Two instances of a tiny model with little room."""
    flags = ["--model", str(tiny_folder(folder / "tiny")), "--kv-blocks", str(KV_BLOCKS)]
    flags += ["--instance", "cpu:mixed", "cpu:mixed", "--policy", "mlfq", "--predictor", "none"]
    flags += ["--set", 'memory.swap="proactive"', "--set", "scheduler.prefill_chunk=64"]
    return LiveDaemon(*flags)


async def test_a_few_migrations_change_no_text(tmp_path: Path) -> None:
    with started(tmp_path) as daemon:
        kinds = await move_about(daemon, SHORT)
    assert kinds["running"] and kinds["waiting"]


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_hundred_migrations_change_no_text(tmp_path: Path) -> None:
    with started(tmp_path) as daemon:
        kinds = await move_about(daemon, LONG)
    assert min(kinds[one] for one in ("running", "waiting", "swapped out")) > 0, kinds

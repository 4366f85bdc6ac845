"""Clients that vanish at every stage leave nothing behind."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import aiohttp

from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.tiny import tiny_folder
from tests.soak import tries

NUM_ABORTS = tries(120, 10_000)
AT_ONCE = 48


async def vanish(session: aiohttp.ClientSession, model: str, chance: random.Random) -> str:
    """Open a stream and drop it at a random moment; where it was dropped."""
    body = {
        "model": model,
        "prompt": [chance.randrange(4, 300) for _ in range(chance.choice([5, 40, 400]))],
        "max_tokens": 400,
        "n": chance.choice([1, 1, 1, 3]),
        "stream": chance.random() < 0.9,
        "ignore_eos": True,
    }
    patience_s = chance.choice([0.0, 0.02, 0.2, 1.0, 5.0])
    try:
        async with asyncio.timeout(patience_s), session.post("/v1/completions", json=body) as got:
            assert got.status == 200, await got.text()
            events = chance.choice([1, 2, 30])
            async for line in got.content:
                events -= line.startswith(b"data:")
                if events <= 0:
                    return "in decode"
    except TimeoutError:
        return "before its first token"
    return "at its end"


async def abort_many(daemon: LiveDaemon, count: int) -> Counter[str]:
    """So many vanished clients, some at once."""
    model = daemon.model()["id"]
    chance = random.Random(11)
    stages: Counter[str] = Counter()
    left = iter(range(count))

    async def client() -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(daemon.url, connector=connector) as session:
            for _ in left:
                stages[await vanish(session, model, chance)] += 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return stages


def held(daemon: LiveDaemon) -> dict[str, int]:
    """How many descriptors each process holds."""
    return {name: len(links) for name, links in daemon.descriptors().items()}


async def test_nothing_leaks(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    flags = ["--model", str(folder), "--kv-blocks", "120", "--set", "scheduler.max_running=24"]
    with LiveDaemon(*flags, env=REAL) as daemon:
        await abort_many(daemon, 50)
        daemon.idle_snapshot()
        await asyncio.sleep(0.5)
        before = held(daemon)
        stages = await abort_many(daemon, NUM_ABORTS)
        seen = daemon.idle_snapshot()
        await asyncio.sleep(0.5)
        after = held(daemon)
        links = [link for one in daemon.descriptors().values() for link in one]
    assert min(stages["before its first token"], stages["in decode"]) > NUM_ABORTS // 10, stages
    assert seen.counters.aborted > NUM_ABORTS // 2
    assert not seen.sequences
    assert not seen.instances[0].kv_used and seen.instances[0].kv_blocks == 120
    assert not [link for link in links if "llmd-frame" in link]
    assert all(after[name] <= before[name] + 2 for name in before), (before, after)

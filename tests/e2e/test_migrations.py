"""Sequences that are moved at random, whatever they do at the moment, say what they would have."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from tests.e2e.live import LiveDaemon
from tests.e2e.moves import KINDS, Mover
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder

PROMPTS = [[5 + number] * (3 + 61 * number) for number in range(8)]
NUM_TOKENS = 150
AT_ONCE = 10
FLAGS = ["--policy", "mlfq", "--kv-blocks", "90", "--predictor", "none"]
FLAGS += ["--set", "scheduler.max_running=4", "--set", "daemon.threads=1"]
FLAGS += ["--set", 'memory.swap="proactive"', "--instance", "cpu", "--instance", "cpu"]


async def ask_until(daemon: LiveDaemon, model: str, moves: Coroutine[None, None, None]) -> int:
    """Ask for answers without a pause until all moves are made; how many, which are all right."""
    asked = {"max_tokens": NUM_TOKENS}
    expected = [await text_of(daemon.url, model, prompt=one, **asked) for one in PROMPTS]
    assert daemon.idle_snapshot().counters.handoffs == 0, "this is the undisturbed run"
    mover, count = asyncio.create_task(moves), 0

    async def client(number: int) -> None:
        nonlocal count
        while not mover.done():
            which = (number + count) % len(PROMPTS)
            text = await text_of(daemon.url, model, prompt=PROMPTS[which], **asked)
            assert text == expected[which]
            count += 1

    await asyncio.gather(*(client(number) for number in range(AT_ONCE)))
    await mover
    return count


async def check_moves(folder: Path, count: int, cache: str, seed: int) -> Mover:
    """So many moves of a daemon of two instances; nothing is left behind."""
    flags = ["--model", str(folder), *FLAGS, "--set", f"scheduler.prefix_cache={cache}"]
    with LiveDaemon(*flags) as daemon:
        model = daemon.model()["id"]
        mover = Mover(daemon, seed)
        answers = await ask_until(daemon, model, mover.move(count))
        seen = daemon.idle_snapshot()
    assert seen.counters.failed == 0 and seen.counters.worker_deaths == 0
    assert seen.counters.handoffs > 0 and seen.counters.handoffs_failed == 0
    for one in seen.instances:
        assert one.kv_free == one.kv_blocks and one.parcels == 0 and one.host_held == 0
    assert not seen.transfers and not seen.sequences
    told = ", ".join(f"{mover.moved[kind]} {kind}" for kind in KINDS)
    print(f"\nmoved {told}; {answers} answers as undisturbed; {seen.counters.handoffs} handoffs")
    return mover


async def test_moves_at_random_change_no_text(tmp_path: Path) -> None:
    await check_moves(tiny_folder(tmp_path / "tiny"), 25, "true", seed=1)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cache", ["true", "false"])
async def test_five_hundred_moves_of_all_kinds(tmp_path: Path, cache: str) -> None:
    mover = await check_moves(tiny_folder(tmp_path / "tiny"), 500, cache, seed=2)
    assert all(mover.moved[kind] > 50 for kind in KINDS), mover.moved

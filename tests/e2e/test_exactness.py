"""Greedy answers of the embedded model equal transformers' own, whatever the scheduler does.

Those that are swapped out and in are longer than two blocks, and equal those of the same daemon
when nobody disturbs it, to the byte.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from daemon.control.client import choose_policy
from tests.e2e.exact import Case, ask_all, cases, differences, prompts, text_of
from tests.e2e.live import LiveDaemon
from tests.e2e.prompts import QUESTIONS
from tests.e2e.reference import MODULE
from tests.soak import SOAK, tries

NUM_TOKENS = 8
LONG = 40
FEW = slice(0, 30, 5)
TOO_LONG = () if SOAK else (200, 257, 333, 512, 700, 1000, 1500)
"""Prompts whose reference takes as long as that of all others."""
ASKED = QUESTIONS if SOAK else QUESTIONS[::2]


def wanted(folder: str) -> Iterator[tuple[str, int, Any]]:
    """The module, count and questions of each record that the quick tests here need."""
    yield MODULE, NUM_TOKENS, prompts(folder, TOO_LONG, ASKED)


class Served(NamedTuple):
    """A daemon with default settings, and the cases for its model."""

    daemon: LiveDaemon
    cases: list[Case]


@pytest.fixture(scope="module")
def served(embedded: LiveDaemon) -> Served:
    return Served(embedded, cases(embedded.model()["root"], NUM_TOKENS, TOO_LONG, ASKED))


async def check(
    daemon: LiveDaemon, asked: list[Case], at_once: int, chat: bool = False
) -> list[dict[str, Any]]:
    """Ask, and fail on the first difference; the answers."""
    entry = daemon.model()
    got = await ask_all(daemon.url, entry["id"], asked, at_once, chat)
    assert differences(entry["root"], asked, got) == []
    return got


async def test_sixteen_at_once_and_then_alone_from_the_prefix_cache(served: Served) -> None:
    await check(served.daemon, served.cases, at_once=16)
    again = await check(served.daemon, served.cases[FEW], at_once=1, chat=True)
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in again]
    long_enough = [one["usage"]["prompt_tokens"] > 16 for one in again]
    assert all(bool(count) == long for count, long in zip(cached, long_enough, strict=True))


async def test_small_chunks_under_preemption(served: Served) -> None:
    flags = ["--policy", "mlfq", "--prefill-chunk", "16", "--max-batch-tokens", "64"]
    asked = [case for case in served.cases if 40 < len(case.expected.prompt) < 200]
    flags += ["--kv-blocks", "12", "--set", "scheduler.prefix_cache=false"]
    with LiveDaemon(*flags) as daemon:
        await check(daemon, asked * tries(1, 2), at_once=16)
        seen = daemon.idle_snapshot()
    assert seen.counters.preemptions > 0
    assert not seen.instances[0].kv_used and seen.instances[0].kv_blocks == 12


async def restless(daemon: LiveDaemon, seed: int) -> None:
    """Choose another policy every now and then: whoever runs may have to leave at any token."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.uniform(0.05, 0.4))
        policy = chance.choice(("mlfq", "speculative", "srtf", "priority"))
        await asyncio.to_thread(choose_policy, daemon.socket, policy)


async def check_with_swaps(daemon: LiveDaemon, asked: list[Case], times: int, seed: int) -> int:
    """Answers stay the same while sequences go out and come back; how many came back."""
    model = daemon.model()["id"]
    alone = await ask_all(daemon.url, model, asked, at_once=2, num_tokens=LONG)
    assert daemon.idle_snapshot().counters.preemptions == 0, "this is the undisturbed run"
    disturbing = asyncio.create_task(restless(daemon, seed))
    try:
        again = await ask_all(daemon.url, model, asked * times, at_once=24, num_tokens=LONG)
    finally:
        disturbing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await disturbing
    assert {one["usage"]["completion_tokens"] for one in again} == {LONG}
    assert [text_of(one) for one in again] == [text_of(one) for one in alone] * times
    seen = daemon.idle_snapshot()
    assert not seen.instances[0].kv_used
    assert seen.instances[0].host_held == 0
    return seen.counters.swaps_in


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["proactive", "reactive"])
async def test_swaps_at_random_change_no_token(served: Served, mode: str) -> None:
    flags = ["--policy", "mlfq", "--kv-blocks", "12", "--set", f'memory.swap="{mode}"']
    asked = [case for case in served.cases if 20 < len(case.expected.prompt) < 60][:8:2]
    with LiveDaemon(*flags, "--set", "scheduler.prefix_cache=false") as daemon:
        assert await check_with_swaps(daemon, asked, times=1, seed=1) > 0


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
async def test_two_hundred_answers_under_swaps(served: Served, seed: int) -> None:
    asked = [case for case in served.cases if len(case.expected.prompt) < 200][-20:]
    flags = ["--policy", "mlfq", "--kv-blocks", "30", "--set", "scheduler.prefix_cache=false"]
    with LiveDaemon(*flags) as daemon:
        assert await check_with_swaps(daemon, asked, times=10, seed=seed) > 20


async def test_other_policies_instances_and_steps_in_flight(served: Served) -> None:
    flags = ["--policy", "vllm", "--instance", "cpu:mixed", "cpu:mixed", "--prefill-chunk", "64"]
    with LiveDaemon(*flags, "--set", "scheduler.depth=2") as daemon:
        await check(daemon, served.cases[FEW], at_once=6)
        await asyncio.to_thread(choose_policy, daemon.socket, "priority")
        await check(daemon, served.cases[FEW], at_once=6)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["synced-sdo", "synced", "packed"])
async def test_lent_memory_changes_no_token(served: Served, policy: str) -> None:
    """More than fit at once, with room by predicted lengths, against one at a time."""
    asked = [case for case in served.cases if 20 < len(case.expected.prompt) < 60][:8:2]
    flags = ["--policy", policy, "--kv-blocks", "16", "--set", "scheduler.prefix_cache=false"]
    with LiveDaemon(*flags) as daemon:
        model = daemon.model()["id"]
        alone = await ask_all(daemon.url, model, asked, at_once=1, num_tokens=LONG)
        again = await ask_all(daemon.url, model, asked * 3, at_once=12, num_tokens=LONG)
        seen = daemon.idle_snapshot()
    assert [text_of(one) for one in again] == [text_of(one) for one in alone] * 3
    assert not seen.instances[0].kv_used


@pytest.mark.soak
@pytest.mark.parametrize("chunk", [16, 64, 512])
@pytest.mark.parametrize("policy", ["sarathi", "vllm", "orca", "static", "priority"])
@pytest.mark.parametrize("blocks", [0, 110])
async def test_every_combination(served: Served, chunk: int, policy: str, blocks: int) -> None:
    flags = ["--prefill-chunk", str(chunk), "--policy", policy, "--kv-blocks", str(blocks)]
    with LiveDaemon(*flags) as daemon:
        for at_once in (16, 1):
            await check(daemon, served.cases, at_once, chat=True)

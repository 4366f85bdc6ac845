"""A seed means the same text in any company: but for near-ties of scores, which are counted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from tests.e2e.live import LiveDaemon
from tests.e2e.sampled import MODULE, sampled
from tests.soak import tries

PROMPT = "Paris is "
NUM_SEEDS = tries(8, 2000)
NUM_TOKENS = 4
NUM_FEW = tries(6, 100)
LONG = 24
"""So many tokens of some answers that pools overflow."""
KV_BLOCKS = 6
"""Three answers fill them, so that six preempt each other though some come late."""
AT_ONCE = 24
NEAR = 1e-3
"""Scores closer than this may change places between two right computations in float32."""


async def texts(daemon: LiveDaemon, seeds: list[int], at_once: int, count: int) -> list[str]:
    """What each seed says, so many at a time."""
    gate = asyncio.Semaphore(at_once)
    model = daemon.model()["id"]

    async def one(session: aiohttp.ClientSession, seed: int) -> str:
        body: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": count}
        body |= {"temperature": 1, "top_p": 1, "repetition_penalty": 1, "ignore_eos": True}
        async with gate, session.post("/v1/completions", json=body | {"seed": seed}) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
        text: str = answer["choices"][0]["text"]
        return text

    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(daemon.url, timeout=limit) as session:
        return await asyncio.gather(*(one(session, seed) for seed in seeds))


def wanted(folder: str) -> Iterator[tuple[str, int, Any]]:
    """The module, count and questions of each record that the quick tests here need."""
    prompt = prompt_ids(folder)
    yield MODULE, NUM_TOKENS, [prompt, list(range(NUM_SEEDS))]
    yield MODULE, LONG, [prompt, list(range(NUM_FEW))]


def prompt_ids(folder: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode(PROMPT).ids
    return ids


def reference(folder: str, seeds: list[int], count: int) -> tuple[list[str], list[float]]:
    """What each seed says by transformers' numbers, and how close its closest draw is."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    answers = sampled(folder, prompt_ids(folder), seeds, count)
    said = [tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers]
    return said, [min(answer.gaps) for answer in answers]


def check(name: str, some: list[str], others: list[str], gaps: list[float]) -> None:
    """All texts are the same but for near-ties, of which there are few."""
    pairs = enumerate(zip(some, others, strict=True))
    differ = [seed for seed, (one, other) in pairs if one != other]
    ties = [gaps[seed] for seed in differ]
    num_near = sum(gap < NEAR for gap in gaps)
    print(
        f"{name}: {len(differ)} of {len(some)} seeds differ, at draws as close as {ties}; "
        f"{num_near} have draws closer than {NEAR}"
    )
    assert all(gap < NEAR for gap in ties), (differ, ties)
    assert len(differ) <= 1 + len(some) // 200


@pytest.mark.timeout(3600)
async def test_seeds_draw_the_same_alone_together_handed_over_and_preempted() -> None:
    seeds, few = list(range(NUM_SEEDS)), list(range(NUM_FEW))
    flags = ["--set", "daemon.threads=1", "--set", "scheduler.prefix_cache=false"]
    with LiveDaemon("--instance", "cpu", "--kv-blocks", str(KV_BLOCKS), *flags) as daemon:
        folder = daemon.model()["root"]
        alone = await texts(daemon, seeds, 1, NUM_TOKENS)
        long = await texts(daemon, few, 1, LONG)
        assert daemon.idle_snapshot().counters.preemptions == 0, "nothing disturbed these"
        preempted = await texts(daemon, few, AT_ONCE, LONG)
        assert daemon.idle_snapshot().counters.preemptions > 0
    expected, gaps = reference(folder, seeds, NUM_TOKENS)
    check("alone and transformers", alone, expected, gaps)
    with LiveDaemon("--instance", "cpu:prefill", "cpu:decode", *flags) as daemon:
        await asyncio.to_thread(daemon.wait_all_ready)
        together = await texts(daemon, seeds, AT_ONCE, NUM_TOKENS)
        assert daemon.idle_snapshot().counters.handoffs >= NUM_SEEDS // 2
    check("alone and together, handed over", alone, together, gaps)
    expected, gaps = reference(folder, few, LONG)
    check("long and transformers", long, expected, gaps)
    check("long and preempted", long, preempted, gaps)

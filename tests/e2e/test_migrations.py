"""Moves between workers, at random, change no text: nor what a request may ask for beside it.

Running, waiting and swapped-out sequences of a tiny model move, in pools that hold three or so.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.live import LiveDaemon
from tests.e2e.moves import KINDS, RUNNING, WAITING, Mover
from tests.e2e.tiny import tiny_folder
from tests.soak import tries

KV_BLOCKS = 40
SHORT, LONG = 12, 500
PAUSE_S = 0.01
Body = dict[str, Any]

ANSWER = {"max_tokens": 60, "ignore_eos": True}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 24}
FORMAT = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
OPTIONS: dict[str, Body] = {
    "n": {"prompt": [7] * 70, "n": 3, "temperature": 0.9, "seed": 5, **ANSWER},
    "seed": {"prompt": [8] * 40, "temperature": 1.0, "top_p": 0.9, "seed": 11, **ANSWER},
    "penalties": {
        "prompt": [9] * 50,
        "temperature": 0,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        **ANSWER,
    },
    "logprobs": {"prompt": [6] * 60, "temperature": 0, "logprobs": 3, **ANSWER},
    "prompt_logprobs": {
        "prompt": [5] * 300,
        "echo": True,
        "logprobs": 2,
        "temperature": 0,
        **ANSWER,
    },
    "grammar": {
        "messages": [{"role": "user", "content": "hello"}],
        "response_format": FORMAT,
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 60,
    },
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tiny_folder(tmp_path_factory.mktemp("moves") / "tiny")
    with LiveDaemon(
        *flags(folder, "cpu:mixed", "cpu:mixed"), "--set", "daemon.threads=1"
    ) as daemon:
        yield daemon


def flags(folder: Path, *instances: str) -> list[str]:
    """Such instances of a model, in pools that hold three sequences or so."""
    found = ["--model", str(folder), "--kv-blocks", str(KV_BLOCKS), "--predictor", "none"]
    found += ["--instance", *instances, "--policy", "mlfq"]
    return [*found, "--set", 'memory.swap="proactive"', "--set", "scheduler.prefill_chunk=64"]


def bodies(count: int, num_tokens: int) -> list[Body]:
    """Requests, greedy or with a seed."""
    chance = random.Random(3)
    made: list[Body] = []
    for index in range(count):
        prompt = [chance.randrange(4, 300) for _ in range((300, 40, 130, 8)[index % 4])]
        heat = {"temperature": 0 if index % 3 else 0.8, "seed": index}
        made.append({"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, **heat})
    return made


async def choices(session: aiohttp.ClientSession, model: str, body: Body) -> Any:
    """What one answer says."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with session.post(path, json={"model": model, **body}) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"]


def assert_same(got: Any, expected: Any) -> None:
    """The same values; log probabilities may differ by what sums in another order do."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, abs=1e-3)
    else:
        assert got == expected


async def move_about(
    daemon: LiveDaemon,
    asked: list[Body],
    count: int,
    kinds: tuple[str, ...],
    num_blocks: int = KV_BLOCKS,
) -> None:
    """Ask the same with nobody disturbing, and again among so many moves, of all these kinds;
    nothing is left.
    """
    before = daemon.snapshot().counters
    model = daemon.model()["id"]
    async with aiohttp.ClientSession(daemon.url) as session:
        alone = [await choices(session, model, body) for body in asked]
        mover = Mover(daemon, seed=4, pause_s=PAUSE_S)
        moving = asyncio.create_task(mover.move(count, kinds))
        while not moving.done():
            asking = (choices(session, model, body) for body in asked)
            try:
                answers = await asyncio.gather(*asking)
            except aiohttp.ServerDisconnectedError as error:
                raise AssertionError(daemon.text()) from error
            for got, expected in zip(answers, alone, strict=True):
                assert_same(got, expected)
        await moving
    seen = daemon.idle_snapshot()
    print(mover.moved, seen.counters)
    for one in seen.instances:
        assert not one.kv_used and one.kv_blocks == num_blocks and not one.host_held, one
    assert seen.counters.handoffs > before.handoffs
    assert seen.counters.handoffs_failed == 0


async def test_a_few_moves_change_no_text(daemon: LiveDaemon) -> None:
    await move_about(daemon, bodies(8, num_tokens=60), SHORT, (RUNNING, WAITING))


@pytest.mark.parametrize(
    "instances",
    [
        "cpu:tp2 cpu:pp2",
        *(
            pytest.param(texts, marks=pytest.mark.soak)
            for texts in (
                "cpu:tp2 cpu:tp2",
                "cpu:pp2 cpu:pp2",
                "cpu cpu:tp2",
                "cpu cpu:tp2 cpu:tp3 cpu:pp2",
            )
        ),
    ],
)
async def test_moves_between_ranks_change_no_text(instances: str, tmp_path: Path) -> None:
    """Ranks that divide the model alike send their blocks to each other, others parts of them."""
    folder = tiny_folder(tmp_path / "tiny")
    with LiveDaemon(*flags(folder, *instances.split())) as daemon:
        await move_about(daemon, bodies(8, num_tokens=60), tries(SHORT, LONG // 5), (RUNNING,))


async def test_options_survive_moves(daemon: LiveDaemon) -> None:
    model = daemon.model()["id"]
    async with aiohttp.ClientSession(daemon.url) as session:
        whole = await choices(session, model, OPTIONS["penalties"])
        stopped = {**OPTIONS["penalties"], "stop": [whole[0]["text"][-8:]]}
        (choice,) = await choices(session, model, stopped)
    assert choice["finish_reason"] == "stop"
    await move_about(daemon, [*OPTIONS.values(), stopped], SHORT, (RUNNING,))


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_hundred_moves_change_no_text(daemon: LiveDaemon) -> None:
    await move_about(daemon, bodies(16, num_tokens=120), LONG, KINDS)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_options_survive_many_moves(daemon: LiveDaemon) -> None:
    longer = [{**body, "max_tokens": 150} for body in OPTIONS.values()]
    await move_about(daemon, longer, LONG // 5, (RUNNING,))

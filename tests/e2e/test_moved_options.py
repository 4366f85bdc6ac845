"""What a request may ask for beside plain text survives moves between workers."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.live import LiveDaemon
from tests.e2e.moves import Mover
from tests.e2e.tiny import tiny_folder

LONG = {"max_tokens": 150, "ignore_eos": True}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 60}
FORMAT = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
ASKED: dict[str, dict[str, Any]] = {
    "n": {"prompt": [7] * 70, "n": 3, "temperature": 0.9, "seed": 5, **LONG},
    "seed": {"prompt": [8] * 40, "temperature": 1.0, "top_p": 0.9, "seed": 11, **LONG},
    "penalties": {
        "prompt": [9] * 50,
        "temperature": 0,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        **LONG,
    },
    "logprobs": {"prompt": [6] * 60, "temperature": 0, "logprobs": 3, **LONG},
    "prompt_logprobs": {"prompt": [5] * 600, "echo": True, "logprobs": 2, "temperature": 0, **LONG},
    "grammar": {
        "messages": [{"role": "user", "content": "hello"}],
        "response_format": FORMAT,
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 150,
    },
}


async def choices(session: aiohttp.ClientSession, model: str, body: dict[str, Any]) -> Any:
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


async def test_options_survive_moves(tmp_path: Path) -> None:
    flags = ["--model", str(tiny_folder(tmp_path / "tiny")), "--predictor", "none"]
    flags += ["--set", "daemon.threads=1", "--kv-blocks", "400"]
    with LiveDaemon(*flags, "--instance", "cpu", "--instance", "cpu") as daemon:
        model = daemon.model()["id"]
        async with aiohttp.ClientSession(daemon.url) as session:
            bodies = list(ASKED.values())
            alone = [await choices(session, model, body) for body in bodies]
            stop = alone[2][0]["text"][-8:]
            bodies.append({**ASKED["penalties"], "stop": [stop]})
            alone.append(await choices(session, model, bodies[-1]))
            mover = Mover(daemon, seed=4, pause_s=0.01)
            moving = asyncio.create_task(mover.move(10_000))
            for _ in range(3):
                asking = (choices(session, model, body) for body in bodies)
                for got, expected in zip(await asyncio.gather(*asking), alone, strict=True):
                    assert_same(got, expected)
            moving.cancel()
        seen = daemon.idle_snapshot()
    assert alone[-1][0]["finish_reason"] == "stop"
    assert seen.counters.handoffs > 10, mover.moved

"""The closed loops of `gpu_bench`: over HTTP, and of a Core that drives an engine by itself."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.speed.closed_loop import closed_loop
from benchmarks.gpu.speed.core_alone import CoreAlone
from benchmarks.gpu.speed.model_folder import tokenizer
from benchmarks.gpu.speed.requests import Request, azure_requests
from daemon.config.load import load
from daemon.lab.bench.endpoint import Form
from daemon.runtime.model import find_model
from tests.e2e.tiny import tiny_folder
from tests.lab.bench.scripted import MODEL, ScriptedServer, Stream, each_token


def bodies(outputs: Sequence[int]) -> list[bytes]:
    """A request for each number of output tokens."""
    return [Form(MODEL).body(np.arange(5), count) for count in outputs]


async def test_a_stream_that_ends_makes_room_for_the_next_request() -> None:
    open_streams: list[int] = [0]
    most: list[int] = [0]

    async def counted(stream: Stream) -> None:
        open_streams[0] += 1
        most[0] = max(most[0], open_streams[0])
        await asyncio.sleep(0.01)
        await each_token(stream)
        open_streams[0] -= 1

    async with ScriptedServer() as server:
        server.script = counted
        streamed = await closed_loop(server.url, bodies([3, 1, 4, 1, 5]), 2, 10.0)
    assert (streamed.tokens, streamed.finished, streamed.cut) == (14, 5, False)
    assert most == [2]
    assert len(streamed.ttft_s) == 5
    assert not streamed.errors


async def test_what_came_before_time_was_up_counts() -> None:
    async def stuck(stream: Stream) -> None:
        await stream.text("a")
        await stream.text("b")
        await asyncio.sleep(30)

    async with ScriptedServer() as server:
        server.script = stuck
        streamed = await closed_loop(server.url, bodies([9, 9, 9]), 2, 0.5)
    assert (streamed.tokens, streamed.finished, streamed.cut) == (4, 0, True)
    assert streamed.seconds < 0.5


async def test_requests_that_fail_are_told() -> None:
    async def refused(stream: Stream) -> None:
        await stream.text("a")
        stream.cut()

    async with ScriptedServer() as server:
        server.script = refused
        streamed = await closed_loop(server.url, bodies([2]), 1, 10.0)
    assert streamed.finished == 0
    assert len(streamed.errors) == 1


def alone(folder: Path) -> CoreAlone:
    """A Core with the engine of a tiny model on the CPU."""
    settings = {"model.path": str(folder), "model.dtype": "bfloat16", "memory.kv_blocks": 64}
    config = load(None, {**settings, "instance": [{"device": "cpu"}]}).config
    return CoreAlone(find_model(config), config)


def requests(outputs: Sequence[int]) -> list[Request]:
    """Prompts of 40 tokens each, one unlike the other."""
    chance = np.random.default_rng(1)
    return [Request(chance.integers(4, 200, 40).astype(np.int32), count) for count in outputs]


def test_a_core_alone_computes_every_request(tmp_path: Path) -> None:
    done = alone(tiny_folder(tmp_path / "model")).closed_loop(requests([5, 3, 8, 2, 6]), 2, 60.0)
    assert (done.tokens, done.cut) == (24, False)
    # One step a prompt or more, and of tokens at most two in each.
    assert 12 <= done.steps <= 24 + 5


def test_a_core_alone_stops_when_time_is_up(tmp_path: Path) -> None:
    done = alone(tiny_folder(tmp_path / "model")).closed_loop(requests([50, 50]), 2, 0.0)
    assert (done.tokens, done.cut) == (0, True)


def test_requests_have_the_traces_lengths_and_prompts_of_their_own() -> None:
    one, other = (azure_requests(4, 8192, 128_256, seed) for seed in (1, 2))
    assert [len(request.prompt) for request in one] == [len(request.prompt) for request in other]
    assert [request.max_tokens for request in one] == [request.max_tokens for request in other]
    assert not any(np.array_equal(a.prompt, b.prompt) for a, b in zip(one, other, strict=True))
    assert all(request.prompt.max() < 128_256 for request in one)


@pytest.mark.parametrize("size", [300, 5000])
def test_a_made_up_vocabulary_has_every_token_once(size: int) -> None:
    made = tokenizer(size)
    assert made.get_vocab_size() == size
    assert len({made.id_to_token(token) for token in range(size)}) == size
    text = made.decode(list(range(260, 290)))
    assert len(text.split(" ")) >= 30

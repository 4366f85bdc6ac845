"""JSON answers and scored prompts through a whole daemon, whose memory is short."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import jsonschema_rs
import pytest

from tests.api.folder import tokenizer
from tests.e2e.live import LiveDaemon
from tests.e2e.tiny import tiny_folder

NUM_REQUESTS = 12
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["small", "large"]},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]},
    },
    "required": ["name", "kind", "sizes", "note"],
    "additionalProperties": False,
    "$defs": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
}
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tiny_folder(tmp_path_factory.mktemp("model") / "tiny")
    flags = ["--kv-blocks", "24", "--prefill-chunk", "16", "--max-batch-tokens", "64"]
    with LiveDaemon("--model", str(folder), *flags) as made:
        yield made
        seen = made.idle_snapshot()
        assert not seen.instances[0].kv_used and seen.instances[0].kv_blocks == 24


async def ask(session: aiohttp.ClientSession, **fields: Any) -> dict[str, Any]:
    async with session.post("/v1/completions", json={"model": "tiny", **fields}) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
    return answer


async def json_answers(session: aiohttp.ClientSession, seed: int) -> list[str]:
    """Two answers of one request; each ends by itself."""
    prompt = [20 + seed, *range(60, 90)]
    fields = {"prompt": prompt, "max_tokens": 200, "seed": seed, "n": 2}
    answer = await ask(session, **fields, response_format=FORM)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(choice["text"])), choice["text"]
    return [choice["text"] for choice in answer["choices"]]


async def test_answers_are_valid_and_the_same_as_alone(daemon: LiveDaemon) -> None:
    async with aiohttp.ClientSession(daemon.url) as session:
        asked = (json_answers(session, seed) for seed in range(NUM_REQUESTS))
        together = await asyncio.gather(*asked)
        assert daemon.idle_snapshot().counters.preemptions > 0
        for seed in range(0, NUM_REQUESTS, 5):
            assert await json_answers(session, seed) == together[seed]
    assert len({text for pair in together for text in pair}) == 2 * NUM_REQUESTS


async def test_what_was_generated_scores_the_same_as_a_prompt(daemon: LiveDaemon) -> None:
    begin = list(range(60, 90))
    async with aiohttp.ClientSession(daemon.url) as session:
        letters = {"type": "regex", "regex": "[a-z]{24}"}
        made = await ask(
            session, prompt=begin, max_tokens=40, logprobs=1, seed=3, response_format=letters
        )
        generated = made["choices"][0]["logprobs"]
        tokens = [tokenizer().token_to_id(name) for name in generated["tokens"]]
        whole = {"prompt": begin + tokens, "max_tokens": 0, "echo": True, "logprobs": 1}
        answers = await asyncio.gather(*(ask(session, **whole) for _ in range(8)))
    for answer in answers:
        scored = answer["choices"][0]["logprobs"]
        assert scored["token_logprobs"][0] is None
        told = scored["token_logprobs"][len(begin) :]
        assert told == pytest.approx(generated["token_logprobs"], abs=1e-3)
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

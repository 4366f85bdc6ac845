"""JSON answers of the embedded model through a real daemon: are they valid, and what does it cost?

    python -m benchmarks.json_answers [--answers 200] [--rounds 10]

First, answers to as many schemas (`benchmarks.json_schemas`): each must end by itself, parse, and
be valid by another implementation of JSON Schema. Then the time of a token with a grammar over the
time of one without, in interleaved rounds of both; and, in this process, the time to make a mask.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import numpy as np
from tokenizers import Tokenizer

from benchmarks.json_schemas import MAX_TOKENS, Json, schema
from benchmarks.live import READY_S, daemon
from daemon.api.request.response_format import grammar_of
from daemon.api.request.schema import JsonSchema, JsonSchemaFormat
from daemon.config.paths import default_cache
from daemon.engine.loading.resolve import shape_here
from daemon.models.embedded import model_folder
from daemon.models.grammar import Compiler

AT_ONCE = 8
TIMED_TOKENS = 96
LONG: Json = {
    "type": "array",
    "minItems": 40,
    "items": {
        "type": "object",
        "properties": {
            "word": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["noun", "verb"]},
            "length": {"type": "integer", "minimum": 0, "maximum": 20},
        },
        "required": ["word", "kind", "length"],
        "additionalProperties": False,
    },
}


def response_format(made: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": made}}


class Client:
    """One daemon's clients."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self._session = session
        self._model = model
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def answer(self, seed: int) -> tuple[str, str, int]:
        """What became of one schema, its text, and its tokens."""
        subject, made = schema(seed)
        asked = f"Make up one {subject}. Answer with JSON only."
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0.7,
            "seed": seed,
            "response_format": response_format(made),
        }
        async with self._gate, self._session.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            if response.status != 200:
                return f"refused: {answer['error']['message']}", "", 0
        (choice,) = answer["choices"]
        text = choice["message"]["content"]
        verdict = judged(made, text) if choice["finish_reason"] == "stop" else "cut"
        return verdict, text, answer["usage"]["completion_tokens"]

    async def token_s(self, streams: int, form: Json | None) -> float:
        """Mean seconds between two tokens of each of some streams that run together."""
        body: Json = {
            "model": self._model,
            "prompt": "A list of words:",
            "max_tokens": TIMED_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"ignore_eos": True} if form is None else {"response_format": form}
        times = await asyncio.gather(*(self._timed(body) for _ in range(streams)))
        return statistics.fmean(times)

    async def _timed(self, body: Json) -> float:
        began = last = 0.0
        count = 0
        async with self._session.post("/v1/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event["choices"] and event["choices"][0]["text"]:
                    last = time.perf_counter()
                    began = began or last
                if event.get("usage"):
                    count = event["usage"]["completion_tokens"]
        assert count == TIMED_TOKENS, f"{count} tokens"
        return (last - began) / (count - 1)


def judged(made: Json, text: str) -> str:
    """What is wrong with a text, or that it is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"does not parse: {error}"
    return "valid" if jsonschema_rs.is_valid(made, value) else "does not validate"


async def ready(session: aiohttp.ClientSession) -> str:
    """The model's name once it serves."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        try:
            async with session.get("/ready") as answer:
                if answer.status == 200:
                    async with session.get("/v1/models") as models:
                        return str((await models.json())["data"][0]["id"])
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the daemon does not answer")


async def validity(client: Client, count: int) -> list[tuple[int, str]]:
    """Ask for all answers, print what became of them; the valid ones with their seeds."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(client.answer(seed) for seed in range(count)))
    took_s = time.perf_counter() - began
    verdicts = Counter(verdict for verdict, _text, _tokens in answers)
    lengths = sorted(tokens for _verdict, _text, tokens in answers)
    print(f"{verdicts['valid']} of {count} parse and validate ({took_s:.0f} s)", flush=True)
    for seed, (verdict, text, tokens) in enumerate(answers):
        if verdict != "valid":
            print(f"  seed {seed}, {tokens} tokens: {verdict}: ... {text[-60:]!r}")
    middle, longest = lengths[len(lengths) // 2], lengths[-1]
    print(f"tokens of an answer: median {middle}, most {longest}, allowed {MAX_TOKENS}")
    return [(seed, text) for seed, (said, text, _tokens) in enumerate(answers) if said == "valid"]


async def token_cost(client: Client, rounds: int) -> None:
    """Print the ratio of token times with and without a grammar, by streams at once."""
    form = response_format(LONG)
    for streams in (1, AT_ONCE):
        await client.token_s(streams, form)
        pairs = []
        for _ in range(rounds):
            plain_s = await client.token_s(streams, None)
            pairs.append((plain_s, await client.token_s(streams, form)))
        ratios = sorted(bound_s / plain_s for plain_s, bound_s in pairs)
        plain_ms = statistics.median(plain_s for plain_s, _bound_s in pairs) * 1e3
        print(
            f"{streams} at once: a token takes {statistics.median(ratios):.3f} times as long with "
            f"a grammar ({ratios[0]:.3f} .. {ratios[-1]:.3f} in {rounds} rounds; "
            f"{plain_ms:.2f} ms without)",
            flush=True,
        )


def mask_cost(answers: list[tuple[int, str]]) -> None:
    """Print what masks take over the answers, each walked once."""
    folder = model_folder("", default_cache())
    compiler = Compiler(folder, shape_here(folder).vocab_size)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mask = np.zeros(compiler.mask_words, np.int32)
    compile_s, mask_s = [], []
    for seed, text in answers:
        made: Any = schema(seed)[1]
        grammar = grammar_of(JsonSchemaFormat(JsonSchema(schema=made, name="answer")))
        began = time.perf_counter()
        matcher = compiler.matcher(grammar)
        compile_s.append(time.perf_counter() - began)
        for token in words.encode(text, add_special_tokens=False).ids:
            began = time.perf_counter()
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            followed = matcher.consume_token(token)
            mask_s.append(time.perf_counter() - began)
            assert followed, matcher.get_error()
    masks_us = np.array(mask_s) * 1e6
    low, high, most = np.percentile(masks_us, (50, 99, 100))
    print(
        f"{len(masks_us)} masks: mean {masks_us.mean():.0f} us, median {low:.0f}, "
        f"99 % below {high:.0f}, most {most:.0f}; a grammar compiles in "
        f"{statistics.median(compile_s) * 1e3:.2f} ms (most {max(compile_s) * 1e3:.2f})"
    )


async def run(url: str, count: int, rounds: int) -> list[tuple[int, str]]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        client = Client(session, await ready(session))
        answers = await validity(client, count)
        await token_cost(client, rounds)
    return answers


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="json_answers", description=__doc__)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, daemon((), Path(folder)) as url:
        answers = asyncio.run(run(url, arguments.answers, arguments.rounds))
    mask_cost(answers)


if __name__ == "__main__":
    main()

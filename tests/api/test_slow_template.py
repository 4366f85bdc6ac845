"""Chat templates that would take all time or memory: a 400, and nobody else is harmed."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.api.sandbox.template_process import what_is_wrong
from tests.api.folder import TEMPLATE, build
from tests.api.scripted import MODEL, ScriptedRuntime
from tests.api.waiting import until_ready

LOOP = "{% for x in range(99999) %}"
NEST = f"{LOOP * 3}x{'{% endfor %}' * 3}"
SAID = "{% set said = messages[-1].content %}"
BODIES = {
    "loops": NEST,
    "loops quietly": NEST.replace("x{%", "{%"),
    "a large string": "{{ 'a' * ((messages | length) * 10**10) }}",
    "a large list": "{{ [1] * ((messages | length) * 10**9) }}",
    "a large output": f"{{% for x in range(9999) %}}{{{{ 'a' * 99999 }}}}{'{% endfor %}'}",
    "a power": "{{ (messages | length + 8) ** (9 ** 9) }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "half a character": "{{ '\\ud800' }}",
    "no sentence": "{{ raise_exception('') }}",
}
COMPILED = {
    "a power": "{{ 9 ** (9 ** 9) }}",
    "no template": "{% frobnicate %}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


def with_template(folder: Path, source: str) -> Path:
    """A model folder with this template."""
    build(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": source}))
    return folder


@asynccontextmanager
async def served(folder: Path, source: str) -> AsyncIterator[ScriptedRuntime]:
    """A process whose model has this template."""
    async with ScriptedRuntime(with_template(folder, source)) as runtime:
        await until_ready(runtime.url)
        yield runtime


async def chat(http: aiohttp.ClientSession, content: str = "x") -> tuple[int, Any]:
    body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
    async with http.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def complete(http: aiohttp.ClientSession) -> int:
    body = {"model": MODEL, "max_tokens": 2, "prompt": "hello"}
    async with http.post("/v1/completions", json=body) as answer:
        return answer.status


def helpers(runtime: ScriptedRuntime) -> list[int]:
    """The API process's children."""
    path = Path(f"/proc/{runtime.process.pid}/task/{runtime.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


async def test_what_a_template_does(tmp_path: Path) -> None:
    # Only some users' words set it off: all others' chats go on.
    cases = [f"{{% elif said == '{name}' %}}{body}" for name, body in BODIES.items()]
    source = f"{SAID}{{% if false %}}{''.join(cases)}{{% else %}}{{{{ said }}}}{{% endif %}}"
    async with (
        served(tmp_path / "m", source) as runtime,
        aiohttp.ClientSession(runtime.url) as http,
    ):
        bad = {name: asyncio.create_task(chat(http, name)) for name in BODIES for _ in range(4)}
        good = await asyncio.gather(complete(http), complete(http), *(chat(http) for _ in range(2)))
        assert [one if isinstance(one, int) else one[0] for one in good] == [200] * 4, good
        for name, asked in bad.items():
            status, answer = await asked
            assert status == 400, (name, answer)
            assert answer["error"]["param"] == "messages"
            assert "chat template" in answer["error"]["message"]
        assert (await chat(http, "again"))[0] == 200
        assert len(helpers(runtime)) == 1
        body = {"messages": [{"role": "user", "content": "loops"}]}
        async with http.post("/tokenize", json=body) as told:
            assert told.status == 400, await told.text()
        await killed_and_started_again(runtime, http)


async def killed_and_started_again(runtime: ScriptedRuntime, http: aiohttp.ClientSession) -> None:
    (pid,) = helpers(runtime)
    os.kill(pid, signal.SIGKILL)
    while helpers(runtime) == [pid]:
        await asyncio.sleep(0.01)
    assert (await chat(http))[0] == 200
    assert helpers(runtime) != [pid]


async def test_a_template_that_cannot_be_compiled(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "m", COMPILED["a power"]) as runtime,
        aiohttp.ClientSession(runtime.url) as http,
    ):
        for _ in range(2):
            status, answer = await chat(http)
            assert status == 400
            assert "chat template cannot be used" in answer["error"]["message"]
        assert await complete(http) == 200


@pytest.mark.parametrize(
    "name", ["no template", "deep", pytest.param("a power", marks=pytest.mark.soak)]
)
async def test_what_compiling_one_does(tmp_path: Path, name: str) -> None:
    folder = with_template(tmp_path / "m", COMPILED[name])
    assert "chat template cannot be used" in what_is_wrong(folder)


async def test_a_template_that_is_fine(tmp_path: Path) -> None:
    assert what_is_wrong(with_template(tmp_path / "m", TEMPLATE)) == ""

"""Each example script streams a whole answer from a real API process whose model is scripted."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.api.folder import build, tokenizer
from tests.api.scripted import ScriptedRuntime, saying
from tests.api.waiting import until_ready
from tests.hangs import HANG_S
from tests.house.source import ROOT

ANSWER = "hello world"
QUOTED = """Who said "it's 5 $ & more" \\ `then`?"""


COMMANDS = [
    ["bash", "examples/chat.sh", QUOTED],
    [sys.executable, "examples/openai_chat.py", "hello"],
    [sys.executable, "examples/aiohttp_stream.py", "hello", "world"],
]


@pytest.mark.parametrize("command", COMMANDS)
async def test_an_example_prints_the_answer(command: list[str], tmp_path: Path) -> None:
    folder = build(tmp_path / "tiny")
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        runtime.script = saying(tokenizer(), ANSWER)
        status, out, error = await run(command, runtime.url)
    assert status == 0, error
    assert out.count(ANSWER) == len(command) - 2
    if command[0] == "bash":
        assert out == f"{ANSWER}\n"


@pytest.mark.parametrize("command", COMMANDS)
async def test_an_example_tells_the_error_that_ends_an_answer(
    command: list[str], tmp_path: Path
) -> None:
    folder = build(tmp_path / "tiny")
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        runtime.script, runtime.fail_at = saying(tokenizer(), ANSWER), 2
        status, _, error = await run(command, runtime.url)
    assert status != 0
    assert runtime.fail_with in error.splitlines()[-1]


async def test_an_example_fails_where_nobody_serves() -> None:
    status, out, _ = await run(["bash", "examples/chat.sh", "hello"], "http://127.0.0.1:9")
    assert status != 0
    assert out == ""


async def run(command: list[str], url: str) -> tuple[int | None, str, str]:
    """Exit status, output and error output of an example that talks to `url`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "LLMD_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(HANG_S):
        out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()

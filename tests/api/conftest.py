"""One API process for all tests that leave it as it was."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from tests.api.folder import build, tokenizer
from tests.api.grammars import Grammars
from tests.api.scripted import ScriptedRuntime
from tests.api.waiting import until_ready


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    """The tiny model's tokenizer."""
    return tokenizer()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    return build(tmp_path_factory.mktemp("models") / "tiny-folder")


@pytest.fixture(scope="session")
def grammars(folder: Path, words: Tokenizer) -> Grammars:
    """A worker's compiler of schemas, with the tiny model's tokenizer."""
    return Grammars(folder, words)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def process(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A ready API process."""
    async with ScriptedRuntime(folder, body_limit_bytes=200_000) as runtime:
        await until_ready(runtime.url)
        yield runtime


@pytest.fixture
def runtime(process: ScriptedRuntime) -> ScriptedRuntime:
    """The process with a fresh script."""
    process.reset()
    return process


@pytest_asyncio.fixture(loop_scope="session")
async def http(process: ScriptedRuntime) -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client."""
    async with aiohttp.ClientSession(process.url) as session:
        yield session


@pytest_asyncio.fixture(loop_scope="session")
async def client(process: ScriptedRuntime) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    async with openai.AsyncOpenAI(
        base_url=f"{process.url}/v1", api_key="none", max_retries=0, timeout=10
    ) as made:
        yield made

"""A scripted endpoint and small workloads."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.lab.bench.scripted import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as running:
        yield running


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Six requests, of which the fourth is longer than the scripted model's 100 tokens."""
    path = tmp_path / "lengths.csv"
    rows = ["num_prefill_tokens,num_decode_tokens", "7,3", "20,1", "40,5", "90,11", "2,4", "33,2"]
    path.write_text("\n".join(rows) + "\n")
    return path

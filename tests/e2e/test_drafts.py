"""Drafts change no text: with lookup and without, while sequences give way and workers die."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.control.client import reload
from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.e2e.live import LiveDaemon
from tests.e2e.test_exactness import restless
from tests.e2e.test_faults import POISON, all_running, answered
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder

NUM_BLOCKS = 30
GREEDY = [{"prompt": [9, 8, 7, number] * 9, "max_tokens": 200} for number in range(4, 9)]
SAMPLED = [{**one, "temperature": 0.7, "seed": 3} for one in GREEDY]
ASKED: list[dict[str, Any]] = [*GREEDY, *SAMPLED]


class Switched:
    """A daemon whose lookup is switched by reading its configuration again."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.file = folder / "llmd.toml"
        self._write(lookup=False)
        flags = ["--config", str(self.file), "--model", str(tiny_folder(folder / "tiny"))]
        flags += ["--policy", "mlfq", "--kv-blocks", str(NUM_BLOCKS)]
        flags += ["--set", 'memory.swap="proactive"', "--set", "scheduler.prefix_cache=false"]
        self.daemon = LiveDaemon(*flags, env=env)

    def _write(self, lookup: bool) -> None:
        self.file.write_text(f"[scheduler]\nprompt_lookup = {str(lookup).lower()}\n")

    def draft(self) -> None:
        """Look for drafts from now on."""
        self._write(lookup=True)
        reload(self.daemon.socket, 10.0)

    async def texts(self, asked: list[dict[str, Any]]) -> list[str]:
        """All at once."""
        model = self.daemon.model()["id"]
        return list(await asyncio.gather(*(text_of(self.daemon.url, model, **a) for a in asked)))


@pytest.fixture
def switched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Switched]:
    """Its parameter: what goes wrong on purpose."""
    one = Switched(tmp_path, **{TEST_MODE: "1", VARIABLE: request.param})
    with one.daemon:
        yield one


@pytest.mark.parametrize("switched", ["worker.slow:1:2"], indirect=True)
async def test_texts_stay_the_same_while_sequences_give_way(switched: Switched) -> None:
    daemon, plain = switched.daemon, []
    for asked in ASKED:
        plain += await switched.texts([asked])
    before = daemon.idle_snapshot().counters
    assert before.preemptions == before.draft_tokens == 0, "this is the undisturbed run"
    switched.draft()
    disturbing = asyncio.create_task(restless(daemon, seed=2))
    try:
        again = await switched.texts(ASKED * 2)
    finally:
        disturbing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await disturbing
    assert again == plain * 2
    seen = daemon.idle_snapshot()
    assert seen.counters.preemptions and seen.counters.swaps_in and seen.counters.accepted_tokens
    assert not seen.instances[0].kv_used and seen.instances[0].host_held == 0


@pytest.mark.soak
@pytest.mark.parametrize("switched", [f"worker.poison:1:{POISON},worker.slow:1:10"], indirect=True)
async def test_texts_stay_the_same_where_a_worker_dies_in_their_midst(switched: Switched) -> None:
    daemon, asked = switched.daemon, GREEDY[:4]
    plain = await switched.texts(asked)
    switched.draft()
    model = daemon.model()["id"]
    again = [asyncio.create_task(text_of(daemon.url, model, **one)) for one in asked]
    await all_running(daemon, again)
    status, _ = await answered(daemon, prompt=[5, POISON, 6], max_tokens=5)
    assert status == 500
    assert await asyncio.gather(*again) == plain
    seen = daemon.idle_snapshot().counters
    assert seen.worker_deaths == 2 and seen.accepted_tokens

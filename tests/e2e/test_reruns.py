"""A daemon whose instances have roles, and its journal run again: the same transfers and times."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import rerun
from tests.e2e.live import LiveDaemon
from tests.e2e.test_migrations import bodies, choices
from tests.e2e.tiny import tiny_folder


@pytest.mark.parametrize(
    ("handoff", "more"),
    [
        ("serialized", ("--predictor", "none", "--set", "memory.compress=true")),
        pytest.param("layered", ("--set", "scheduler.pair='arrival'"), marks=pytest.mark.soak),
        pytest.param("auto", ("--policy", "splitwise"), marks=pytest.mark.soak),
    ],
)
async def test_the_rerun_of_a_prefill_and_a_decode_instance_is_the_run(
    tmp_path: Path, handoff: str, more: tuple[str, ...]
) -> None:
    flags = ["--model", str(tiny_folder(tmp_path / "tiny")), "--kv-blocks", "80"]
    flags += ["--instance", "cpu:prefill", "cpu:decode", "--handoff", handoff, *more]
    flags += ["--set", 'memory.swap="proactive"', "--set", "daemon.threads=1"]
    with LiveDaemon(*flags, folder=tmp_path) as daemon:
        async with aiohttp.ClientSession(daemon.url) as session:
            name = daemon.model()["id"]
            asking = (choices(session, name, body) for body in bodies(8, num_tokens=40))
            await asyncio.gather(*asking)
        seen = daemon.idle_snapshot().counters
    incident = read_incident(tmp_path / "journal" / FILE_NAME)
    was, again = replayed(incident), rerun(incident)
    assert again.handoffs == was.handoffs == seen.handoffs > 0
    for column in ("first_s", "last_s"):
        true, found = (
            getattr(log.requests, column) - log.requests.arrival_s for log in (was, again)
        )
        assert found == pytest.approx(true, abs=1e-6), column

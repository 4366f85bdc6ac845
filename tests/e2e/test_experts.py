"""A daemon that keeps a part of a mixture's experts in host memory: counts, exchanges and text."""

import asyncio
from pathlib import Path

from daemon.core.values.snapshot import ExpertStatus
from tests.e2e.live import LiveDaemon
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import MIXTURE, tiny_folder
from tests.hangs import HANG_S

ASKED = [{"prompt": [7 + number, 8, 9, 8], "max_tokens": 60} for number in range(3)]


def used(daemon: LiveDaemon) -> ExpertStatus:
    """Where the only instance's experts lie, and were computed."""
    experts = daemon.snapshot().instances[0].experts
    assert isinstance(experts, ExpertStatus)
    return experts


async def texts(daemon: LiveDaemon) -> list[str]:
    """Each answer alone."""
    model = daemon.model()["id"]
    return [await text_of(daemon.url, model, **asked) for asked in ASKED]


async def test_experts_that_are_chosen_often_move_to_the_device_and_change_no_text(
    tmp_path: Path,
) -> None:
    folder = tiny_folder(tmp_path / "tiny", MIXTURE)
    flags = "--set", "model.experts_on_cpu=1", "--set", "scheduler.prefix_cache=false"
    with LiveDaemon("--model", str(folder), *flags) as daemon:
        first = await texts(daemon)
        async with asyncio.timeout(HANG_S):
            while not used(daemon).exchanged:
                await asyncio.sleep(0.05)
        before = used(daemon)
        assert before.on_device == before.in_ram > 0 < before.bytes_in_ram
        assert before.chosen_on_device > 0 < before.chosen_in_ram
        assert await texts(daemon) == first
        async with asyncio.timeout(HANG_S):
            while used(daemon).chosen_on_device == before.chosen_on_device:
                await asyncio.sleep(0.05)

"""A daemon whose workers are toys, that carries a mark, and may lose workers as it likes."""

import asyncio
import os
import random
import time
from pathlib import Path

from daemon.control.protocol import Snapshot
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.chaos.cases import MODEL
from tests.chaos.processes import MARK
from tests.e2e.live import LiveDaemon
from tests.house.source import ROOT

TOY = "tests.chaos.worker"
KV_BLOCKS = 24
HOST_BLOCKS = 30
AMPLE = 2000
BLOCK_BYTES = 4096  # of the tiny model: 16 tokens, 2 layers, 2 heads of 8 numbers
QUIET_S = 30.0


def seed_of(default: int) -> int:
    """The run's seed."""
    return int(os.environ.get("LLMD_CHAOS_SEED", default))


def marked() -> tuple[str, dict[str, str]]:
    """A new mark, and the environment of a daemon with toys for workers that carries it."""
    mark = f"{os.getpid()}-{random.getrandbits(40)}"
    env = {MARK: mark, TEST_MODE: "1", WORKER: TOY, "PYTHONPATH": str(ROOT)}
    return mark, env


def flags_of(folder: Path, config: Path, kv_blocks: int, swap: str = "") -> list[str]:
    """Two workers, which may die as often as they like."""
    config.write_text("")
    settings = {
        "memory.host_bytes": HOST_BLOCKS * BLOCK_BYTES,
        "memory.kv_blocks": kv_blocks,
        "memory.swap": f'"{swap}"',
        "daemon.restarts": 100_000,
        "daemon.spare": "true",
        "scheduler.max_running": 16,
        "scheduler.prefill_chunk": 32,
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    named = ["--config", str(config), "--model", str(folder), "--set", f'model.name="{MODEL}"']
    return [*named, *flags, "--instance", "cpu", "--instance", "cpu"]


async def quiet(daemon: LiveDaemon) -> Snapshot:
    """The daemon once nothing runs and both workers are there."""
    deadline_s = time.monotonic() + QUIET_S
    while True:
        seen = await asyncio.to_thread(daemon.snapshot)
        busy = seen.running or seen.waiting or any(one.steps_in_flight for one in seen.instances)
        if not busy and all(one.state == "ready" for one in seen.instances):
            return seen
        assert time.monotonic() < deadline_s, f"not quiet: {seen}"
        await asyncio.sleep(0.05)


def check_ledgers(seen: Snapshot) -> None:
    """Every block is free, or free to be taken."""
    assert not seen.sequences
    for one in seen.instances:
        assert one.kv_held == one.kv_fenced == one.host_held == 0, one
        assert one.kv_free == one.kv_blocks == KV_BLOCKS and one.kv_cached <= one.kv_free

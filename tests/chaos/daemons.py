"""A daemon that carries a mark, has little memory, and may lose workers as often as it likes."""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

from daemon.config.paths import default_cache
from daemon.memory.sizing import block_bytes
from daemon.models.consistent import checked_shape
from daemon.protocol.control import Snapshot
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.chaos.cases import MODEL, Case
from tests.chaos.processes import MARK
from tests.e2e.live import LiveDaemon
from tests.house.source import ROOT

BLOCK_SIZE = 16
KV_BLOCKS = 24
HOST_BLOCKS = 30
AMPLE = 1000
QUIET_S = 100.0


def seed_of(default: int) -> int:
    """The run's seed."""
    return int(os.environ.get("LLMD_CHAOS_SEED", default))


class Subject(NamedTuple):
    """A model, who computes it, and what it is asked."""

    worker: str  # the module that its workers run
    flags: tuple[str, ...]
    block_bytes: int
    cases: list[Case]
    workers: int = 2


def toys(folder: Path, cases: list[Case], workers: int = 2) -> Subject:
    """Toys of the shape in a folder."""
    shape = checked_shape(folder, default_cache())
    flags = ("--model", str(folder), "--set", f'model.name="{MODEL}"')
    size_bytes = block_bytes(shape, BLOCK_SIZE, "float32")
    return Subject("tests.chaos.worker", flags, size_bytes, cases, workers)


def embedded(folder: Path, cases: list[Case]) -> Subject:
    """The embedded model, whose files are in the folder, computed as always."""
    size_bytes = block_bytes(checked_shape(folder, default_cache()), BLOCK_SIZE, "float32")
    return Subject("daemon.engine.worker.main", (), size_bytes, cases)


def marked(subject: Subject) -> tuple[str, dict[str, str]]:
    """A new mark, and the environment of a daemon with these workers that carries it."""
    mark = f"{os.getpid()}-{random.getrandbits(40)}"
    env = {MARK: mark, TEST_MODE: "1", WORKER: subject.worker, "PYTHONPATH": str(ROOT)}
    return mark, env


def flags_of(subject: Subject, config: Path, kv_blocks: int, swap: str = "") -> list[str]:
    """Workers that may die as often as they like."""
    config.write_text("")
    settings = {
        "memory.host_bytes": HOST_BLOCKS * subject.block_bytes,
        "memory.kv_blocks": kv_blocks,
        "memory.swap": f'"{swap}"',
        "daemon.restarts": 100_000,
        "daemon.spare": "true",
        "scheduler.max_running": 16,
        "scheduler.prefill_chunk": 32,
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [
        "--config",
        str(config),
        *subject.flags,
        *flags,
        *("--instance", "cpu") * subject.workers,
    ]


def alone_flags(subject: Subject, config: Path) -> list[str]:
    """One worker with memory for all, and no spare: quick to start, for the right answers."""
    flags = flags_of(subject._replace(workers=1), config, AMPLE)
    return [*flags, "--set", "daemon.spare=false"]


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
        assert not one.kv_used and one.kv_free + one.kv_cached == one.kv_blocks == KV_BLOCKS

"""What a start takes, stage by stage, and how soon a killed worker's successor computes.

    python -m benchmarks.starts [--config FILE] [--kills 3] [--set section.key=value ...]

Starts the first configured instance's worker as the daemon does, kills it, and lets its supervisor
replace it: `--kills` times without a spare worker, as often with one. A first token is that of a
prompt of 16 tokens, sent the moment the worker is ready. Run it on a quiet machine; the model's
files come from memory after the first start.
"""

import argparse
import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from daemon.config.load import load, parse_value
from daemon.protocol.worker import Join, Load, Loading, Plan, Ready, Reply
from daemon.runtime.model import find_model
from daemon.runtime.start_times import LoadClock, Stages
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.supervisor.spare import Spare
from daemon.supervisor.worker import WorkerHooks, WorkerProcess
from daemon.wire.columns import int32

PROMPT_TOKENS = 16
IMPORT_S = 120.0
"""For a spare to import all, on a machine that is not as quiet as it should be."""


class Start(msgspec.Struct):
    """One life of a worker, in seconds since it was started or its predecessor killed."""

    spare: bool
    ready_s: float = 0.0
    first_token_s: float = 0.0
    stages: Stages = {}


class Watched:
    """A worker under its supervisor, timed."""

    def __init__(self, message: Load, spare: Spare | None) -> None:
        hooks = WorkerHooks(self._loading, self._ready, self._reply, self._lost, self._hopeless)
        self.worker = WorkerProcess(0, "timed", message, hooks, restarts=1000, spare=spare)
        self._load = message
        self._began_s = time.perf_counter()
        self._clock = LoadClock({})
        self._current = Start(spare=False)
        self._answered = asyncio.Event()
        self.starts: list[Start] = []
        self.why = ""

    async def next(self) -> Start:
        """The next life, once it has computed a token. Raises RuntimeError if there is none."""
        await self._answered.wait()
        self._answered.clear()
        if self.why:
            raise RuntimeError(self.why)
        return self.starts[-1]

    def kill(self, spare: bool) -> None:
        """SIGKILL, and begin to count."""
        self._began_s, self._clock = time.perf_counter(), LoadClock({})
        self._current = Start(spare)
        os.kill(self.worker.pid, signal.SIGKILL)

    def _loading(self, _instance: int, progress: Loading) -> None:
        self._clock.reached(progress.stage, time.perf_counter())

    def _ready(self, _instance: int, _ready: Ready) -> None:
        now = time.perf_counter()
        self._current.ready_s = now - self._began_s
        self._current.stages = self._clock.took(now)
        self.worker.send(_first_plan(self._load))

    def _reply(self, _instance: int, _reply: Reply) -> None:
        self._current.first_token_s = time.perf_counter() - self._began_s
        self.starts.append(self._current)
        self._answered.set()

    def _lost(self, _instance: int, _blamed: bool) -> None:
        pass

    def _hopeless(self, _instance: int, why: str) -> None:
        self.why = why
        self._answered.set()


def _first_plan(message: Load) -> Plan:
    """A prompt in the first slot and blocks."""
    num_blocks = -(-PROMPT_TOKENS // message.block_size)
    one, none = np.ones(1, np.uint8), int32()
    batch = Batch(
        instance=0,
        step=0,
        slots=int32([0]),
        starts=int32([0]),
        counts=int32([PROMPT_TOKENS]),
        samples=one,
        fed=one,
        table_slots=int32([0] * num_blocks),
        table_indices=int32(range(num_blocks)),
        table_blocks=int32(range(num_blocks)),
        copy_sources=none,
        copy_targets=none,
        left_slots=none,
        joined_slots=int32([0]),
        joined_sequences=np.zeros(1, np.int64),
    )
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    tokens = int32(range(PROMPT_TOKENS))
    return Plan(batch, tokens, (Join(0, 0, PROMPT_TOKENS, sampling, int32()),))


async def measure(message: Load, kills: int) -> list[Start]:
    """A first start, then the successors of killed workers, without a spare and with one."""
    spare = Spare(message.device)
    watched = Watched(message, spare)
    running = asyncio.ensure_future(watched.worker.run())
    try:
        tell(await watched.next())
        for kept in (False, True):
            for _ in range(kills):
                if kept:
                    await spare.prepare()
                    await imported(spare)
                watched.kill(kept)
                tell(await watched.next())
    finally:
        await watched.worker.close()
        await spare.close()
        await running
    return watched.starts


async def imported(spare: Spare) -> None:
    """Until a spare is ready. Raises TimeoutError."""
    async with asyncio.timeout(IMPORT_S):
        while not spare.ready:
            await asyncio.sleep(0.1)


def tell(start: Start) -> None:
    """A line about one life."""
    stages = ", ".join(f"{stage} {took_s:.2f}" for stage, took_s in start.stages.items())
    kind = "spare" if start.spare else "new process"
    print(
        f"{kind:<12} ready {start.ready_s:6.2f} s   first token {start.first_token_s:6.2f} s   "
        f"({stages})",
        flush=True,
    )


def memory_of(pid: int) -> dict[str, int]:
    """A process's memory in MiB: all it maps, its fair share, and what is its alone."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    fields = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if "kB" in line}
    return {name: int(fields[name]) // 1024 for name in ("Rss", "Pss", "Private_Dirty")}


async def spare_memory(message: Load) -> dict[str, int]:
    """What a spare holds while it waits, in MiB."""
    spare = Spare(message.device)
    await spare.prepare()
    await imported(spare)
    held = memory_of(spare.pid)
    await spare.close()
    return held


def main() -> None:
    """Measure and print; `--json FILE` keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pairs = (one.partition("=") for one in arguments.set)
    config = load(arguments.config, {key: parse_value(text) for key, _, text in pairs}).config
    message = find_model(config).load(config, 0)
    starts = uvloop.run(measure(message, arguments.kills))
    held = uvloop.run(spare_memory(message))
    print(f"a spare holds {held['Rss']} MiB, of which {held['Private_Dirty']} are its alone")
    if arguments.json:
        result: dict[str, Any] = {"starts": msgspec.to_builtins(starts), "spare_mib": held}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

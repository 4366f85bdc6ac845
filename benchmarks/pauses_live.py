"""The longest pauses of streams on a real daemon: overload, flips of roles, and a worker's death.

Two CPU workers of the embedded model, one for prompts and one for answers, whose pools are small:
clients ask for several times what they hold, all within a few seconds, and follow every token. The
same requests are asked three times, each time of a fresh daemon: with nobody disturbing; while
roles are given to the instances again and again; and with a kill of the worker that draws answers.
A gap may be longer than the promise by a step and by the move back, which may be a prompt and what
was answered computed again.

    python -m benchmarks.pauses_live [--requests 40] [--every 0.25] [--flips 50] [--pause 4]
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer

from benchmarks.flips import Ask, Clients, Seen, ready
from benchmarks.live import started
from benchmarks.peers.machine import describe
from daemon.control.client import fetch_snapshot, flip
from daemon.protocol.control import Role, Snapshot
from tests.e2e.prompts import LICENCE

PROMPT_TOKENS, ANSWER_TOKENS = (20, 60), (60, 100)
KV_BLOCKS, MAX_LEN, CHUNK = 60, 256, 64
LOOK_S = 0.1
FLIP_S = 0.7
WORKER = b"daemon.engine.worker.main"

Disturbed = Callable[["Daemon"], Coroutine[None, None, None]]


@dataclass
class Daemon:
    """A daemon that is being asked."""

    socket: Path
    pid: int
    num_flips: int  # that are to be ordered

    def look(self) -> Snapshot:
        """Its state now."""
        return fetch_snapshot(self.socket, 30.0)

    def workers(self) -> list[int]:
        """The processes of its workers, in the order in which they were started."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        pids = sorted(int(pid) for one in tasks for pid in (one / "children").read_text().split())
        return [pid for pid in pids if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes()]


@dataclass
class Found:
    """What the clients of one run saw, and what the daemon counted."""

    name: str
    answers: list[Seen]
    took_s: float
    step_p99_s: float
    after: Snapshot

    def row(self, pause_s: float) -> str:
        """A line of the table."""
        whole = [one for one in self.answers if not one.fault]
        gaps = [end - begin for one in whole for begin, end in pairwise(one.events_s)]
        counters = self.after.counters
        cells = (
            f"{len(whole)} of {len(self.answers)}",
            f"{self.took_s:.0f}",
            f"{pause_s:g}",
            f"{self.step_p99_s:.2f}",
            f"{max(gaps, default=0.0):.2f}",
            sum(gap > pause_s for gap in gaps),
            counters.preemptions,
            counters.handoffs,
            counters.flips,
            counters.worker_deaths,
        )
        return f"| {self.name} | " + " | ".join(map(str, cells)) + " |"


async def nothing(_daemon: Daemon) -> None:
    """Nobody disturbs."""


async def flips(daemon: Daemon) -> None:
    """Roles are given again and again, and at the end those that there were."""
    roles = [Role.PREFILL, Role.DECODE, Role.MIXED]
    names = [one.name for one in daemon.look().instances]
    for number in range(2, 2 + daemon.num_flips):  # each is another role than there was
        name, role = names[number % 2], roles[number % 3]
        await asyncio.to_thread(flip, daemon.socket, name, role, 30.0, 0.0)
        await asyncio.sleep(FLIP_S)


async def death(daemon: Daemon) -> None:
    """The second worker, which draws the answers, dies once several streams have begun there."""
    while sum(one.state == "decode" for one in daemon.look().sequences) < 4:
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(3.0)
    os.kill(daemon.workers()[1], signal.SIGKILL)


DISTURBED: dict[str, Disturbed] = {
    "overload": nothing,
    "flips": flips,
    "a worker's death": death,
}


def drawn(count: int, every_s: float, text: list[int], seed: int) -> list[Ask]:
    """Stretches of a text, one each so many seconds."""
    chance, asks = random.Random(seed), []
    for number in range(count):
        length, answer = chance.randint(*PROMPT_TOKENS), chance.randint(*ANSWER_TOKENS)
        start = chance.randrange(len(text) - length)
        asks.append(Ask(text[start : start + length], answer, number * every_s))
    return asks


async def run(name: str, url: str, daemon: Daemon, options: argparse.Namespace) -> Found:
    """One run on a fresh daemon."""
    timeout = aiohttp.ClientTimeout(total=3600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        model, root = await ready(session, daemon.socket)
        tokenizer = Tokenizer.from_file(str(Path(root) / "tokenizer.json"))
        text = tokenizer.encode(LICENCE.read_text(), add_special_tokens=False).ids
        asks = drawn(options.requests, options.every, text, options.seed)
        began_s = time.monotonic()
        disturbing = asyncio.create_task(DISTURBED[name](daemon))
        answers = await Clients(session, model, asks).arrive(1.0)
        took_s = time.monotonic() - began_s
        disturbing.cancel()
        if disturbing.done() and not disturbing.cancelled():
            disturbing.result()  # its error, if it had one
        after = await asyncio.to_thread(daemon.look)
    step_p99_s = max(one.step_p99_s for one in after.instances)
    return Found(name, answers, took_s, step_p99_s, after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--every", type=float, default=0.25, help="seconds; default: %(default)s")
    parser.add_argument("--flips", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    print(", ".join(f"{key} {one}" for key, one in describe().items()), flush=True)
    flags = ["--instance", f"cpu:{Role.PREFILL}", f"cpu:{Role.DECODE}", "--policy", "gittins"]
    flags += ["--kv-blocks", str(KV_BLOCKS), "--set", f"scheduler.max_pause_s={options.pause}"]
    for setting in (f"model.max_len={MAX_LEN}", f"scheduler.max_batch_tokens={CHUNK}"):
        flags += ["--set", setting]
    print(
        "| Run | whole answers | s | longest pause promised, s | step p99, s | longest gap, s "
        "| gaps over the pause | preemptions | handoffs | flips | deaths |\n" + "|---" * 11 + "|"
    )
    for name in DISTURBED:
        with tempfile.TemporaryDirectory(prefix="llmd-pauses-") as folder:
            with started(flags, Path(folder)) as one:
                daemon = Daemon(Path(folder) / "llmd.sock", one.process.pid, options.flips)
                found = asyncio.run(run(name, one.url, daemon, options))
            print(found.row(options.pause), flush=True)


if __name__ == "__main__":
    main()

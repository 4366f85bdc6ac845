"""How llmd stands overload: `python -m benchmarks.overload [--seconds 10] [--rounds 3]`.

A daemon whose steps take a fixed time, so that its front and its Core are measured and not a
processor's arithmetic: a tiny model, and `worker.slow` of `daemon.wire.faults`. Steps are as short
as a GPU's, so that two are in flight; over 20 ms there would be one. Clients arrive at 1, 2, 5, 10
times what it can serve, at random and whatever became of those before them. An answer is good if it
is whole within `--deadline` of its client's arrival.

Then a burst: clients come within one second, and each who is refused comes back when it was told
to, until it is served. With honest promises nearly every second attempt succeeds.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from benchmarks.live import daemon
from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.e2e.tiny import tiny_folder

LEVELS = (1, 2, 5, 10)
GOALS = {2: 0.95, 5: 0.90, 10: 0.80}
REFUSED_WITHIN_S = 0.050
PROMPT_TOKENS = 24


@dataclass(slots=True)
class Seen:
    """What one attempt of a client met."""

    due_s: float  # when it should have been sent
    sent_s: float
    status: int = 0  # 0: no answer at all
    answered_s: float = 0.0  # when the status came
    done_s: float = 0.0
    retry_after_s: float = 0.0
    whole: bool = False


class Clients:
    """Clients of one daemon, over any number of connections."""

    def __init__(self, session: aiohttp.ClientSession, model: str, max_tokens: int) -> None:
        self._session = session
        self._chance = random.Random(1)
        body = {"model": model, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        self._body = body

    async def ask(self, due_s: float) -> Seen:
        """One attempt, followed to its end."""
        prompt = [self._chance.randrange(4, 300) for _ in range(PROMPT_TOKENS)]
        data = msgspec.json.encode({**self._body, "prompt": prompt})
        seen = Seen(due_s, time.perf_counter())
        try:
            async with self._session.post("/v1/completions", data=data) as answer:
                seen.status, seen.answered_s = answer.status, time.perf_counter()
                seen.retry_after_s = float(answer.headers.get("Retry-After-Ms", "0")) / 1e3
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return seen
        seen.done_s = time.perf_counter()
        seen.whole = answer.status == 200 and text.endswith(b"data: [DONE]\n\n")
        return seen

    async def arrive(self, rate: float, seconds: float) -> list[Seen]:
        """Poisson arrivals at so many a second; everything that they met."""
        began_s = time.perf_counter()
        due_s, asking = began_s, []
        while (due_s := due_s + self._chance.expovariate(rate)) < began_s + seconds:
            await asyncio.sleep(due_s - time.perf_counter())
            asking.append(asyncio.create_task(self.ask(due_s)))
        return list(await asyncio.gather(*asking))

    async def keep_busy(self, at_once: int, seconds: float) -> list[Seen]:
        """So many clients that ask again as soon as they are served."""
        end_s = time.perf_counter() + seconds

        async def one() -> list[Seen]:
            seen = []
            while (now := time.perf_counter()) < end_s:
                seen.append(await self.ask(now))
            return seen

        return [
            seen for each in await asyncio.gather(*(one() for _ in range(at_once))) for seen in each
        ]

    async def insist(self, due_s: float) -> list[Seen]:
        """One client that comes back when it is told to, until it is served."""
        attempts = []
        while True:
            await asyncio.sleep(due_s - time.perf_counter())
            attempts.append(seen := await self.ask(due_s))
            if seen.status != 429:
                return attempts
            due_s = seen.answered_s + seen.retry_after_s


def quantile(values: Iterable[float], share: float) -> float:
    """The value that so great a share does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def goodput(seen: Sequence[Seen], deadline_s: float) -> float:
    """Good answers a second, once the first ones have had time to end."""
    first_s = min(one.due_s for one in seen) + deadline_s
    last_s = max(one.due_s for one in seen)
    good = [one for one in seen if one.whole and one.done_s - one.due_s <= deadline_s]
    return sum(first_s <= one.done_s <= last_s for one in good) / (last_s - first_s)


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Their mean, and from where to where they lie."""
    middle = form(statistics.fmean(values))
    return f"{middle} ({form(min(values))} .. {form(max(values))})"


async def levels(clients: Clients, options: argparse.Namespace) -> None:
    """Closed loop for the capacity, then every level, as often as there are rounds."""
    closed, found = [], {level: list[list[Seen]]() for level in LEVELS}
    for _ in range(options.rounds):
        busy = await clients.keep_busy(2 * options.running, options.seconds)
        closed.append(goodput(busy, options.deadline))
        for level in LEVELS:
            rate = level * statistics.fmean(closed)
            found[level].append(await clients.arrive(rate, options.seconds))
    rates = {level: [goodput(s, options.deadline) for s in runs] for level, runs in found.items()}
    peak = max(statistics.fmean(each) for each in (closed, *rates.values()))
    print(f"capacity (closed loop): {spread(closed, '{:.1f}'.format)} good answers a second")
    for level, runs in found.items():
        shares = [rate / peak for rate in rates[level]]
        everyone = [one for seen in runs for one in seen]
        refused = [one for one in everyone if one.status not in {0, 200}]
        odd = sum(one.status not in {200, 429} for one in everyone)
        quick = [one.answered_s - one.sent_s for one in refused]
        late = quantile((one.sent_s - one.due_s for one in everyone), 0.99)
        goal = f" (goal {GOALS[level]:.0%})" if level in GOALS else ""
        print(
            f"{level:>3}x: {spread(shares, '{:.1%}'.format)} of the peak{goal}; "
            f"{len(refused)} of {len(everyone)} refused, {odd} of them not by a 429, "
            f"in {1e3 * quantile(quick, 0.5):.1f} ms, p99 {1e3 * quantile(quick, 0.99):.1f} ms "
            f"(goal {1e3 * REFUSED_WITHIN_S:.0f}); clients themselves p99 {1e3 * late:.1f} ms late"
        )


async def burst(clients: Clients, options: argparse.Namespace) -> None:
    """All at once, then only those who were told to come back."""
    began_s = time.perf_counter()
    chance = random.Random(2)
    dues = sorted(began_s + chance.random() for _ in range(options.burst))
    stories = await asyncio.gather(*(clients.insist(due_s) for due_s in dues))
    took_s = time.perf_counter() - began_s
    refused = [story for story in stories if len(story) > 1]
    second = sum(story[1].status == 200 for story in refused)
    attempts = [len(story) for story in stories]
    promised = [story[0].retry_after_s for story in refused]
    needed = [story[-1].sent_s - story[0].answered_s for story in refused]
    print(
        f"burst of {len(stories)}: all served in {took_s:.1f} s; {len(refused)} were refused at "
        f"first, {second} of them served when they came back as told; attempts "
        f"p50 {quantile(attempts, 0.5):.0f}, most {max(attempts)}; promised "
        f"p50 {quantile(promised, 0.5):.0f} s, most {max(promised, default=0):.0f} s; needed "
        f"p50 {quantile(needed, 0.5):.1f} s, most {max(needed, default=0):.1f} s"
    )


async def measure(url: str, options: argparse.Namespace) -> None:
    """Everything, against a daemon that is starting."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        while True:
            try:
                async with session.get("/ready") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
        async with session.get("/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        clients = Clients(session, model, options.tokens)
        await clients.keep_busy(options.running, 2.0)
        await levels(clients, options)
        await asyncio.sleep(options.deadline)
        await burst(clients, options)


def main() -> int:
    """Start the daemon, measure, print."""
    parser = argparse.ArgumentParser(prog="benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of every level of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=int, default=15, help="what a step takes")
    parser.add_argument("--running", type=int, default=16, help="answers at a time")
    parser.add_argument("--waiting", type=int, default=16, help="the longest queue")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds for a good answer")
    parser.add_argument("--burst", type=int, default=300, help="clients of the burst")
    options = parser.parse_args()
    os.environ |= {TEST_MODE: "1", VARIABLE: f"worker.slow:1:{options.step_ms}"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--model", str(tiny_folder(folder / "tiny")), "--predictor", "none"]
        flags += ["--set", f"scheduler.max_running={options.running}"]
        flags += ["--set", f"scheduler.max_waiting={options.waiting}"]
        with daemon(flags, folder) as url:
            uvloop.run(measure(url, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())

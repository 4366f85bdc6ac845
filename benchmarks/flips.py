"""Flips under load: a real daemon with two CPU workers whose roles are swapped again and again.

One instance prefers prompts, the other one answers. Clients stream greedy answers over HTTP: first
a closed loop for what is served, then arrivals at a share of that with nobody disturbing (at rest),
then the same arrivals again, in as many rounds as it takes, while both roles are swapped each time
that four answers and a prompt are under way. Texts must be those of the run at rest. One that is
not is asked again with the logits: two that nearly tie may change places between two batches.

    python -m benchmarks.flips [--flips 200] [--requests 120] [--load 0.8] [--out FILE]
"""

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tokenizers import Tokenizer

from benchmarks.live import READY_S, daemon
from benchmarks.overload import quantile
from benchmarks.peers.machine import describe
from daemon.control.client import ControlError, fetch_snapshot, flip
from daemon.protocol.control import Counters, FlipStatus, InstanceStatus, Role, Snapshot
from tests.e2e.exact import NEAR_TIE
from tests.e2e.prompts import LICENCE

PROMPT_TOKENS, ANSWER_TOKENS = (30, 1500), (8, 200)
CHUNK, KV_BLOCKS = 64, 600
"""The pool is smaller than what a run asks for, so that the next run finds nothing in its cache."""
CLOSED_AT_ONCE = 8
DECODES, PREFILLS = 4, 1
"""A flip is ordered when at least so many are under way."""
MOMENT_S = 30.0
"""After so long without such a moment, it is ordered anyway, and counted."""
CLEAR_S = 15.0
"""So long a flip may take to be over before the next one is ordered."""
LOOK_S = 0.02
SLACK_S = 0.005
"""A flip should show within a step's 99th percentile and so much."""


@dataclass(frozen=True)
class Ask:
    """One request, the same in every run."""

    prompt: list[int]
    max_tokens: int
    due_s: float  # after the run's beginning, at one request a second


@dataclass
class Seen:
    """One answer as its client saw it."""

    ask: int
    text: str = ""
    events_s: list[float] = field(default_factory=list)
    fault: str = ""

    def gaps(self) -> list[tuple[float, float]]:
        """From when to when each gap between two events lasted."""
        return list(zip(self.events_s, self.events_s[1:], strict=False))


@dataclass(frozen=True)
class Swap:
    """Both instances had their roles swapped once."""

    ordered_s: float  # on the clients' clock
    over_s: float
    full: bool  # as much was under way as it should
    step_p99_s: tuple[float, float]  # of the instances, when it was ordered
    statuses: tuple[FlipStatus, ...]  # as they were when it was over


def drawn(count: int, text: Sequence[int], seed: int) -> list[Ask]:
    """Stretches of a long text, with lengths even on a logarithmic scale, and Poisson arrivals."""
    chance, asks, due_s = random.Random(seed), [], 0.0
    for _ in range(count):
        length, answer = (
            round(math.exp(chance.uniform(math.log(low), math.log(high))))
            for low, high in (PROMPT_TOKENS, ANSWER_TOKENS)
        )
        start = chance.randrange(len(text) - length)
        due_s += chance.expovariate(1.0)
        asks.append(Ask(list(text[start : start + length]), answer, due_s))
    return asks


class Clients:
    """Clients of one daemon."""

    def __init__(self, session: aiohttp.ClientSession, model: str, asks: list[Ask]) -> None:
        self._session = session
        self._model = model
        self.asks = asks

    def _body(self, index: int) -> dict[str, Any]:
        ask = self.asks[index]
        body = {"model": self._model, "prompt": ask.prompt, "max_tokens": ask.max_tokens}
        return {**body, "temperature": 0, "repetition_penalty": 1, "ignore_eos": True}

    async def stream(self, index: int) -> Seen:
        """One answer, followed to its end."""
        seen, body = Seen(index), {**self._body(index), "stream": True}
        try:
            async with self._session.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    seen.fault = await answer.text()
                    return seen
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        seen.events_s.append(time.monotonic())
                        event = json.loads(line[6:])
                        seen.fault = seen.fault or str(event.get("error", ""))
                        seen.text += "".join(one["text"] for one in event.get("choices", ()))
        except (aiohttp.ClientError, TimeoutError) as error:
            seen.fault = repr(error)
        return seen

    async def closed(self, count: int) -> float:
        """Requests/s with so many clients that ask again as soon as they are served."""
        left, began_s = iter(range(count)), time.monotonic()

        async def one() -> None:
            for index in left:
                await self.stream(index)

        await asyncio.gather(*(one() for _ in range(CLOSED_AT_ONCE)))
        return count / (time.monotonic() - began_s)

    async def arrive(self, rate: float) -> list[Seen]:
        """All requests, at so many a second in the mean."""
        began_s = time.monotonic()

        async def one(index: int) -> Seen:
            await asyncio.sleep(began_s + self.asks[index].due_s / rate - time.monotonic())
            return await self.stream(index)

        return list(await asyncio.gather(*(one(index) for index in range(len(self.asks)))))

    async def near_tie(self, index: int) -> tuple[str, str]:
        """An answer asked alone, and its text until two logits first nearly tie."""
        body = {**self._body(index), "logprobs": 2}
        async with self._session.post("/v1/completions", json=body) as answer:
            choice = (await answer.json())["choices"][0]
        sure = ""
        for token, top in zip(
            choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True
        ):
            best = sorted(top.values(), reverse=True)
            if len(best) > 1 and best[0] - best[1] < NEAR_TIE:
                break
            sure += token
        return choice["text"], sure


class Flipper:
    """Who swaps the roles of two instances at busy moments, and waits until that has shown."""

    def __init__(self, socket: Path, count: int) -> None:
        self._socket = socket
        self._count = count
        self.swaps: list[Swap] = []

    @property
    def done(self) -> bool:
        """Whether all flips were ordered; each swap is two."""
        return 2 * len(self.swaps) >= self._count

    async def run(self) -> None:
        """All swaps, one after another."""
        while not self.done:
            seen, full = await self._moment()
            self.swaps.append(await self._swap(seen, full))

    async def _look(self) -> Snapshot:
        await asyncio.sleep(LOOK_S)
        return await asyncio.to_thread(fetch_snapshot, self._socket, 10.0)

    async def _moment(self) -> tuple[Snapshot, bool]:
        """When enough is under way, or `MOMENT_S` are over; whether it is enough."""
        until_s = time.monotonic() + MOMENT_S
        while True:
            seen = await self._look()
            states = [one.state for one in seen.sequences]
            full = states.count("decode") >= DECODES and states.count("prefill") >= PREFILLS
            if full or time.monotonic() > until_s:
                return seen, full

    async def _swap(self, seen: Snapshot, full: bool) -> Swap:
        one, two = seen.instances
        newest, ordered_s = seen.counters.flips, time.monotonic()
        orders = (
            asyncio.to_thread(flip, self._socket, mine.name, other.role, 10.0, CLEAR_S)
            for mine, other in ((one, two), (two, one))
        )
        await asyncio.gather(*orders)
        while True:
            found = [each for each in (await self._look()).flips if each.number > newest]
            over = all(each.clear_s >= 0 and (each.flip_s >= 0 or each.idle) for each in found)
            if (len(found) == 2 and over) or time.monotonic() > ordered_s + CLEAR_S:
                p99_s = one.step_p99_s, two.step_p99_s
                return Swap(ordered_s, time.monotonic(), full, p99_s, tuple(found))


def longest(runs: Iterable[Seen], during: Sequence[Swap] | None = None) -> float:
    """The longest gap of any stream; `during`: of those that overlap with a swap."""
    gaps = (gap for seen in runs for gap in seen.gaps())
    lengths = (
        end - start
        for start, end in gaps
        if during is None or any(one.ordered_s < end and start < one.over_s for one in during)
    )
    return max(lengths, default=0.0)


async def different(clients: Clients, rest: list[Seen], runs: list[Seen]) -> list[dict[str, Any]]:
    """Answers that are not those of the run at rest."""
    found = []
    for seen in runs:
        right = rest[seen.ask]
        if seen.text == right.text and not seen.fault and not right.fault:
            continue
        pairs = zip(seen.text, right.text, strict=False)
        shorter = min(len(seen.text), len(right.text))
        place = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
        alone, sure = await clients.near_tie(seen.ask)
        found.append(
            {
                "request": seen.ask,
                "prompt_tokens": len(clients.asks[seen.ask].prompt),
                "character": place,
                "of": len(right.text),
                "fault": seen.fault or right.fault,
                "near_tie": len(sure) < len(alone) and place >= len(sure.rstrip("\ufffd")),
                "is": seen.text[place : place + 40],
                "at_rest": right.text[place : place + 40],
                "alone": alone[place : place + 40],
            }
        )
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and most."""
    top = max(values, default=float("nan"))
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "max": top}


def of_flips(swaps: Sequence[Swap], names: Sequence[str]) -> dict[str, Any]:
    """How long flips took."""
    p99_s = [
        (each, one.step_p99_s[names.index(each.instance)]) for one in swaps for each in one.statuses
    ]
    shown = [(each, limit) for each, limit in p99_s if not each.idle and each.flip_s >= 0]
    return {
        "flips": len(p99_s),
        "of them with less under way": sum(2 for one in swaps if not one.full),
        "of them idle": sum(each.idle for each, _ in p99_s),
        "not shown": sum(not each.idle and each.flip_s < 0 for each, _ in p99_s),
        "not clear": sum(each.clear_s < 0 for each, _ in p99_s),
        "flip_s": spread([each.flip_s for each, _ in shown]),
        "step_p99_s": spread([limit for _, limit in p99_s]),
        "within step p99 + 5 ms": sum(each.flip_s <= limit + SLACK_S for each, limit in shown),
        "clear_s": spread([each.clear_s for each, _ in p99_s if each.clear_s >= 0]),
    }


def counted(before: Counters, after: Counters) -> dict[str, float]:
    """What the daemon counted between two snapshots."""
    names = ("handoffs", "handoff_sum_s", "handoffs_failed", "sent_blocks", "sent_bytes")
    names += ("recomputed_tokens", "preemptions", "cached_tokens", "computed_tokens", "failed")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


async def measure(url: str, socket: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All runs, and their figures."""
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        model, root = await ready(session, socket)
        tokenizer = Tokenizer.from_file(str(Path(root) / "tokenizer.json"))
        text = tokenizer.encode(LICENCE.read_text(), add_special_tokens=False).ids
        clients = Clients(session, model, drawn(options.requests, text, options.seed))
        capacity = await clients.closed(max(CLOSED_AT_ONCE, options.requests // 3))
        rate = options.load * capacity
        print(f"closed loop: {capacity:.3f} requests/s; arrivals at {rate:.3f}", flush=True)
        begun = fetch_snapshot(socket, 10.0)
        rest = await clients.arrive(rate)
        print(f"at rest: longest gap {longest(rest):.3f} s", flush=True)
        before = fetch_snapshot(socket, 10.0)
        flipper, runs = Flipper(socket, options.flips), list[Seen]()
        swapping = asyncio.create_task(flipper.run())
        while not runs or not (flipper.done or swapping.done()):
            runs += await clients.arrive(rate)
            print(f"{2 * len(flipper.swaps)} flips in {len(runs)} answers", flush=True)
        await swapping  # its error, if it had one
        after = fetch_snapshot(socket, 10.0)
        wrong = await different(clients, rest, runs)
    gaps = {"at_rest": longest(rest), "during_flips": longest(runs, flipper.swaps)}
    return {
        "capacity_rps": capacity,
        "rate_rps": rate,
        "answers": len(runs),
        "texts that differ": wrong,
        **of_flips(flipper.swaps, [one.name for one in before.instances]),
        "longest_gap_s": {**gaps, "ratio": gaps["during_flips"] / gaps["at_rest"]},
        "counted at rest": counted(begun.counters, before.counters),
        "counted with flips": counted(before.counters, after.counters),
        "left": [left_behind(one) for one in after.instances],
        "swaps": flipper.swaps,
    }


def left_behind(one: InstanceStatus) -> dict[str, Any]:
    """What of an instance's pools is not free when nothing runs; it should be nothing."""
    return {"instance": one.name, "held": one.kv_held, "fenced": one.kv_fenced}


async def ready(session: aiohttp.ClientSession, socket: Path) -> tuple[str, str]:
    """The served model's name and folder, once both workers can compute."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        try:
            seen = await asyncio.to_thread(fetch_snapshot, socket, 5.0)
        except ControlError:
            seen = None
        if seen is not None and [one.state for one in seen.instances] == ["ready", "ready"]:
            async with session.get("/v1/models") as answer:
                entry = (await answer.json())["data"][0]
            return entry["id"], entry["root"]
        await asyncio.sleep(0.2)
    raise SystemExit("the daemon was not ready in time")


def told(figures: dict[str, Any]) -> Iterable[str]:
    """The figures for people."""
    wrong = figures["texts that differ"]
    unexplained = sum(not one["near_tie"] for one in wrong)
    yield f"texts that differ: {len(wrong)} of {figures['answers']}, {unexplained} not by near-ties"
    yield from (f"  {one}" for one in wrong)
    for key, value in figures.items():
        if key not in {"texts that differ", "swaps"}:
            yield f"{key}: {rounded(value)}"


def rounded(value: Any) -> str:
    """A figure for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {rounded(one)}" for key, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=120, help="default: %(default)s")
    parser.add_argument("--load", type=float, default=0.8, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="a file for the figures; default: none")
    options = parser.parse_args()
    machine = describe()
    print(", ".join(f"{key} {one}" for key, one in machine.items()), flush=True)
    flags = ["--instance", f"cpu:{Role.PREFILL}", f"cpu:{Role.DECODE}"]
    flags += ["--kv-blocks", str(KV_BLOCKS), "--set", f"scheduler.prefill_chunk={CHUNK}"]
    flags += ["--set", f"scheduler.max_batch_tokens={CHUNK}"]  # one prompt's chunk in a step
    with tempfile.TemporaryDirectory(prefix="llmd-flips-") as name:
        folder = Path(name)
        with daemon(flags, folder) as url:
            figures = asyncio.run(measure(url, folder / "llmd.sock", options))
    print("\n".join(told(figures)))
    if options.out is not None:
        asked = {"requests": options.requests, "load": options.load, "seed": options.seed}
        figures = msgspec.to_builtins({"machine": machine, **asked, **figures})
        text = json.dumps(figures, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

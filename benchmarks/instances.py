"""Tokens a second of one model served by several kinds of instances, all on this machine's CPU.

    python -m benchmarks.instances [--model FOLDER] [--instances cpu cpu:pp2 cpu:tp2]
        [--streams 1 8] [--tokens 96] [--rounds 5] [--set KEY=VALUE ...]

A daemon of this checkout for each instance is started first, one after the other; those that are
not asked idle. `cpu@1` is one worker with one thread, `cpu:pp2@20+10` is stages of these layers.
Each round asks all daemons in turn for the same sampled answers, which copy nothing, so that no
drafts are accepted. A rate counts from the last first token to the last token. Ratios are to the
first instance, round by round. Of stages it also prints the share of the steps' time in which each
waited for another.
"""

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from benchmarks.live import started
from benchmarks.peers.machine import describe

READY_S = 200.0


async def ready(url: str) -> str:
    """The model's name, once a daemon serves it."""
    deadline_s = time.monotonic() + READY_S
    async with aiohttp.ClientSession(url) as session:
        while time.monotonic() < deadline_s:
            try:
                async with session.get("/ready") as answer:
                    is_ready = answer.status == 200
                if is_ready:
                    async with session.get("/v1/models") as answer:
                        name: str = (await answer.json())["data"][0]["id"]
                    return name
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
    raise SystemExit(f"{url} is not ready")


async def _stream(session: aiohttp.ClientSession, body: dict[str, object]) -> tuple[float, float]:
    """The times of an answer's first and last token."""
    times = list[float]()
    async with session.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                assert "error" not in json.loads(line[6:]), line
                times.append(time.perf_counter())
    return times[0], times[-1]


async def rate(url: str, model: str, streams: int, tokens: int, seed: int) -> float:
    """Tokens a second of so many answers at once."""
    sampled = {"temperature": 1.0, "top_p": 1.0, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=600)) as session:
        ends = await asyncio.gather(
            *(
                _stream(
                    session,
                    {
                        "model": model,
                        "prompt": [7 + seed, 11 + stream, *range(20, 34)],
                        "max_tokens": tokens,
                        "seed": 1000 * seed + stream,
                        **sampled,
                    },
                )
                for stream in range(streams)
            )
        )
    begin_s = max(first for first, _ in ends)
    return streams * (tokens - 1) / (max(last for _, last in ends) - begin_s)


async def stage_times(url: str) -> list[float]:
    """Seconds of a daemon's steps over stages, and what each stage computed of them; empty: it has
    none.
    """
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        text = await answer.text()
    counter = r"^llmd:stage_(?:steps|computed)_seconds_total{.*} (\S+)"
    found = re.findall(counter, text, re.MULTILINE)
    return [float(value) for value in found]


def flags_of(instance: str, model: str, settings: Sequence[str], folder: Path) -> list[str]:
    """The flags of a daemon, whose configuration is in `folder` where it needs one."""
    device, _, more = instance.partition("@")
    threads, flags = more, ["--instance", device]
    if "+" in more:
        where, _, parallel = device.rpartition(":")
        table = {"device": where, "parallel": parallel, "layers": [*map(int, more.split("+"))]}
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        (folder / "llmd.toml").write_text("\n".join(["[[instance]]", *lines, ""]))
        threads, flags = "", ["--config", str(folder / "llmd.toml")]
    if model:
        flags += ["--model", model]
    for setting in (*settings, *([f"daemon.threads={threads}"] if threads else [])):
        flags += ["--set", setting]
    return flags


async def compare(urls: dict[str, str], streams: Sequence[int], tokens: int, rounds: int) -> None:
    """Print the rates of all instances."""
    names = {instance: await ready(url) for instance, url in urls.items()}
    for instance, url in urls.items():
        await rate(url, names[instance], max(streams), 8, 0)
    print("| Streams | Instance | tokens/s | ratio | from | to |\n|---|---|---|---|---|---|")
    for count in streams:
        before = {instance: await stage_times(url) for instance, url in urls.items()}
        found: dict[str, list[float]] = {instance: [] for instance in urls}
        for turn in range(rounds):
            order = [*urls.items()]
            for instance, url in order if turn % 2 == 0 else reversed(order):
                found[instance].append(await rate(url, names[instance], count, tokens, turn + 1))
        first = found[next(iter(urls))]
        for instance, rates in found.items():
            ratios = [own / base for own, base in zip(rates, first, strict=True)]
            spread = f"{statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f}"
            print(
                f"| {count} | `{instance}` | {statistics.median(rates):.1f} | {spread} |",
                flush=True,
            )
        for instance, url in urls.items():
            now = await stage_times(url)
            first = before[instance] or [0.0] * len(now)  # it had told nothing yet
            times = [late - own for late, own in zip(now, first, strict=True)]
            if times:
                shares = " ".join(f"{1 - own / times[0]:.0%}" for own in times[1:])
                print(f"bubbles of `{instance}` with {count}: {shares}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Start the daemons and compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="")
    parser.add_argument("--instances", nargs="+", default=["cpu", "cpu:pp2", "cpu:tp2"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(argv)
    print(describe())
    with ExitStack() as stack:
        urls = {}
        for instance in options.instances:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags = flags_of(instance, options.model, options.set, folder)
            urls[instance] = stack.enter_context(started(flags, folder)).url
            asyncio.run(ready(urls[instance]))
        asyncio.run(compare(urls, options.streams, options.tokens, options.rounds))


if __name__ == "__main__":
    main()

"""Prompt lookup, on and off: tokens a second of answers that copy, and of those that do not.

One daemon of this checkout serves the embedded model on this machine's CPU, and is told by reading
its configuration again to draft or not to: two daemons may choose other ways for the same products.
Each round asks every task both ways, which is first in turn; no prefix is cached. An answer that
copies is one to a request to repeat a text, or to change a word of some code; one that does not is
a chat's, sampled. All are greedy but the chats, which have seeds, so the text must be the same, and
is compared.

    python -m benchmarks.prompt_lookup [--rounds 3] [--streams 1 8] [--tokens 160] [--out FILE]
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.live import daemon
from benchmarks.peers.machine import describe, vectors
from daemon.control.client import reload

READY_S = 180.0
NAME = "lookup"
CONFIG = "llmd.toml"

TEXTS = (
    "The harbour at Ullstad was built in three stages. The oldest quay, of granite, dates from "
    "1741, when the town had no more than ninety houses. A wooden pier followed in 1822 for the "
    "herring boats, and the long breakwater was finished in 1906, after two winters in which ice "
    "had carried the works away. Today the ferry to the islands leaves from the breakwater four "
    "times a day, and the granite quay is used by small sailing boats alone.",
    "Sourdough rises because wild yeast and bacteria live in its starter. The bacteria make lactic "
    "and acetic acid, which give the bread its taste and keep mould away. The yeast makes the gas "
    "that lifts the dough. A starter that is fed each day with equal weights of flour and water "
    "doubles within eight hours at twenty-four degrees. In a cold kitchen it takes twice as long, "
    "and the bread tastes more sour, since acetic acid is made more slowly but for longer.",
    "Minutes of the meeting of 12 March. Present were Anna Berg, Tomas Lind, Priya Nair and Sam "
    "Okoro. The board agreed to move the spring fair from 20 April to 27 April, because the hall "
    "is let on the earlier date. Tomas Lind will ask the fire brigade for a permit. Priya Nair "
    "reported that the roof of the pavilion will cost 14,300 crowns, of which the town pays half. "
    "Sam Okoro keeps the accounts until a new treasurer is chosen in June.",
    "A glacier moves in two ways. Its ice creeps under its own weight, faster at the surface than "
    "below, and where water lies between ice and rock the whole glacier slides. In summer, when "
    "meltwater reaches the bed, the same glacier may move three times as fast as in winter. What "
    "it carries it leaves at its end as moraine: clay, sand and blocks as large as houses, in no "
    "order, which tells a geologist that ice and not a river has laid them down.",
)
"""What is to be repeated."""
CODE = (
    """def total(items, rate):
    result = 0
    for item in items:
        price = item["price"] * item["count"]
        if item.get("discount"):
            price = price - item["discount"]
        result = result + price
    return result * (1 + rate)


def average(items, rate):
    if not items:
        return 0
    return total(items, rate) / len(items)""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek at an empty stack")
        return self.items[-1]

    def size(self):
        return len(self.items)""",
    """def read_rows(path, separator=","):
    rows = []
    with open(path, encoding="utf-8") as file:
        header = file.readline().strip().split(separator)
        for line in file:
            values = line.strip().split(separator)
            if len(values) != len(header):
                continue
            rows.append(dict(zip(header, values)))
    return rows


def column(rows, name):
    return [row[name] for row in rows if name in row]""",
)
"""What is to be written again."""
_COUNTS = ("draft_tokens", "accepted_tokens")


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked: a prompt for each stream, and how answers are drawn."""

    name: str
    copies: bool
    sampling: Mapping[str, Any]

    def prompt(self, number: int) -> str:
        """The prompt of one stream."""
        text, code = TEXTS[number % len(TEXTS)], CODE[number % len(CODE)]
        if self.name == "quote":
            return f"Repeat this text word for word.\n\n{text}\n\nThe text again:\n\n"
        if self.name == "edit":
            return f"```python\n{code}\n```\nThe same with better names:\n```python\n"
        return (
            f"Q: What do you know of {text.split('.')[0].lower()}? Tell me in your own words.\nA:"
        )


GREEDY = {"temperature": 0, "repetition_penalty": 1.0}
TASKS = (
    Task("quote", True, GREEDY),
    Task("edit", True, GREEDY),
    Task("chat", False, {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}),
    Task("greedy chat", False, {"temperature": 0, "repetition_penalty": 1.1}),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What all streams of a task got."""

    tokens_s: float
    texts: tuple[str, ...]


def ask(url: str, task: Task, number: int, round_: int, num_tokens: int) -> tuple[str, int]:
    """One answer and its tokens."""
    # A head of its own, so that rounds differ.
    prompt = f"[{round_}.{number}]\n{task.prompt(number)}"
    body = {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": num_tokens,
        "seed": 1000 * round_ + number,
    }
    body |= {**task.sampling, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=1800) as answer:
        said = json.load(answer)
    return said["choices"][0]["text"], said["usage"]["completion_tokens"]


def measured(url: str, task: Task, streams: int, round_: int, num_tokens: int) -> Asked:
    """So many streams of a task, all at once."""
    with ThreadPoolExecutor(streams) as pool:
        began = time.perf_counter()
        jobs = [pool.submit(ask, url, task, i, round_, num_tokens) for i in range(streams)]
        found = [job.result() for job in jobs]
        took_s = time.perf_counter() - began
    return Asked(sum(count for _, count in found) / took_s, tuple(text for text, _ in found))


def counted(folder: Path) -> dict[str, int]:
    """What the daemon counted of drafts so far."""
    command = [".venv/bin/python", "-m", "daemon.cli.main", "ctl", "status", "--json"]
    told = subprocess.run(
        [*command, "--socket", str(folder / "llmd.sock")], check=True, capture_output=True
    )
    counters = json.loads(told.stdout)["counters"]
    return {name: counters[name] for name in _COUNTS}


def write(folder: Path, way: str) -> None:
    """The configuration that the daemon reads next."""
    on = "true" if way == "on" else "false"
    (folder / CONFIG).write_text(f"[scheduler]\nprompt_lookup = {on}\n")


def wait_for(url: str) -> None:
    """Until a daemon serves."""
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{url} does not answer") from None
            time.sleep(0.3)


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="default: 1 8")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer; %(default)s")
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS])
    parser.add_argument("--flags", default="", help="more flags of `llmd serve`, for both")
    parser.add_argument("--out", type=Path, help="a file for the figures; default: none")
    options = parser.parse_args()
    machine = {**describe(), "vectors": vectors()}
    print(", ".join(f"{key} {one}" for key, one in machine.items()), flush=True)
    tasks = [task for task in TASKS if task.name in options.tasks]
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmd-lookup-")))
        write(folder, "off")
        flags = ["--config", str(folder / CONFIG), "--set", f'model.name="{NAME}"']
        flags += ["--set", "scheduler.prefix_cache=false", *options.flags.split()]
        url = stack.enter_context(daemon(flags, folder))
        wait_for(url)
        heads = "".join(f"{head:>22}" for head in ("off, tokens/s", "on, tokens/s", "on/off"))
        print(f"{'task':<14}{'streams':>8}{heads}{'drafted':>9}{'accepted':>9}  text")
        for streams in options.streams:
            for task in tasks:
                rows.append(compared(task, streams, url, folder, options))
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def compared(
    task: Task,
    streams: int,
    url: str,
    folder: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A task's rounds of both ways, and its line."""
    found: dict[str, list[Asked]] = {"on": [], "off": []}
    before = counted(folder)
    for number in range(options.rounds):
        for way in ("on", "off") if number % 2 else ("off", "on"):
            write(folder, way)
            reload(folder / "llmd.sock", READY_S)
            found[way].append(measured(url, task, streams, number, options.tokens))
    after = counted(folder)
    pairs = list(zip(found["on"], found["off"], strict=True))
    ratios = [on.tokens_s / off.tokens_s for on, off in pairs]
    different = sum(a != b for on, off in pairs for a, b in zip(on.texts, off.texts, strict=True))
    drafted, accepted = (after[name] - before[name] for name in _COUNTS)
    speeds = {way: [one.tokens_s for one in asked] for way, asked in found.items()}
    text = "same" if not different else f"{different} of {streams * len(pairs)} DIFFER"
    cells = spread(speeds["off"]), spread(speeds["on"]), spread(ratios)
    print(
        f"{task.name:<14}{streams:>8}"
        + "".join(f"{cell:>22}" for cell in cells)
        + f"{drafted:>9}{accepted:>9}  {text}",
        flush=True,
    )
    told = {"task": task.name, "streams": streams, "tokens_s": speeds, "ratios": ratios}
    return {**told, "drafted": drafted, "accepted": accepted, "different": different}


if __name__ == "__main__":
    main()

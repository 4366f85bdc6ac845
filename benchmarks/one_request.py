"""What one request becomes on its way through a real daemon: `python -m benchmarks.one_request`.

It starts `llmd serve` with the embedded model on a CPU, asks one question, and prints what the
client sends, the messages, events and actions that pass through the runtime, and what the client
receives. Clock times, seeds, random numbers of requests and empty fields are left out. `--write`
puts the list into ARCHITECTURE.md.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon.config.cuda import VISIBLE
from daemon.protocol.worker import Plan
from daemon.state.batch import Batch
from tests.e2e.live import free_port
from tests.house.source import ROOT

PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- one request: begin -->\n```text\n", "```\n<!-- one request: end -->"
BODY = {
    "model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "What is an owl?"}],
    "max_tokens": 2,
    "temperature": 0,
    "stream": True,
}
FLAGS = ("--instance", "cpu:mixed", "--kv-blocks", "256", "--set", "daemon.spare=false")
READY_S = 120.0
NUM_SHOWN = 3
"""Of a long column, so many numbers at its beginning and one at its end."""
HIDDEN = frozenset({"now", "seed", "work", "request_id"})
"""Fields that differ from run to run, and a plan's summary for the cost model."""
WIDTH = 130

TO_API = "runtime to api"
Line = tuple[str, str]
"""Who sends it, and what it is."""


def recorded() -> list[Line]:
    """Ask the question of a daemon of its own; every line of the request's way, in its order."""
    with tempfile.TemporaryDirectory(prefix="llmd-one-") as folder:
        seen, port = Path(folder, "seen.jsonl"), free_port()
        command = [sys.executable, "-m", "benchmarks.one_request", "--daemon", str(seen)]
        flags = [*FLAGS, "--port", str(port), "--socket", f"{folder}/llmd.sock"]
        own = {VISIBLE: "", "STATE_DIRECTORY": folder, "PYTHONPATH": str(ROOT)}
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *flags], env=os.environ | own, stdout=log, stderr=log
            )
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}/ready", Path(folder, "log"))
            events = list(_ask(f"http://127.0.0.1:{port}/v1/chat/completions"))
        finally:
            process.terminate()
            process.wait()
        inside = [tuple(json.loads(line)) for line in seen.read_text().splitlines()]
    last = max(at for at, (who, _) in enumerate(inside) if who == TO_API)
    return [("client", json.dumps(BODY)), *inside[: last + 1], *(("SSE", one) for one in events)]


def text(lines: list[Line]) -> str:
    """The lines as the page shows them: who, what, and the rest of a long one below it."""
    return "".join(
        textwrap.fill(
            f"{who:<16} {what}", WIDTH, subsequent_indent=" " * 21, break_long_words=False
        )
        + "\n"
        for who, what in lines
    )


def lines_of(text: str) -> list[Line]:
    """The lines that `text` was made of."""
    joined = re.sub(r"\n {21}", " ", text)
    return [(line[:16].strip(), line[17:]) for line in joined.splitlines()]


def written() -> list[Line]:
    """The lines as the page has them."""
    return lines_of(PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0])


def write(lines: list[Line]) -> None:
    """Put the lines into the page."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(head + BEGIN + text(lines) + END + tail, encoding="utf-8")


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the daemon is not ready:\n{log.read_text()}")


def _ask(url: str) -> Iterator[str]:
    """The answer's events, of which only the choices are the same in every run."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(BODY).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in filter(None, (line.decode().strip() for line in answer)):
            data = line.removeprefix("data: ")
            if data.startswith("{"):
                data = f'{{..., "choices": {json.dumps(json.loads(data)["choices"])}}}'
            yield f"data: {data}"


def serve(seen: Path, flags: list[str]) -> int:
    """Be the daemon, and write down what passes through its runtime."""
    from daemon.cli.main import main as llmd
    from daemon.core.core import Core
    from daemon.runtime.api_link import ApiLink
    from daemon.runtime.plans import Planner
    from daemon.runtime.runtime import Runtime

    file = seen.open("a")
    known = {"Generate", "Started", "SequenceStarted", "Tokens", "Predicted", "PredictedLength"}
    known |= {"RequestArrived", "Submit", "Deliver", "StepDone", "Plan", "Reply"}

    def note(who: str, what: msgspec.Struct) -> None:
        if type(what).__name__ in known:
            print(json.dumps((who, shown(what))), file=file, flush=True)

    _tap(ApiLink, "_frame", lambda link, payload: note("api to runtime", link._decode(payload)))
    _tap(ApiLink, "send", lambda _, message: note(TO_API, message))
    _tap(Core, "handle", lambda _, event: note("to the Core", event))
    _tap(Core, "handle", after=lambda actions: [note("from the Core", one) for one in actions])
    _tap(Planner, "plan", after=lambda plan: note("to the worker", plan))
    _tap(Runtime, "reply", lambda _, _instance, reply: note("from the worker", reply))
    return llmd(["serve", *flags])


def _tap(
    owner: type,
    name: str,
    before: Callable[..., object] = lambda *_: None,
    after: Callable[[Any], object] = lambda _: None,
) -> None:
    """Have a method's arguments, or what it gives, looked at on their way."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def tapped(*arguments: Any) -> Any:
        before(*arguments)
        given = method(*arguments)
        after(given)
        return given

    setattr(owner, name, tapped)


def shown(what: msgspec.Struct) -> str:
    """A message with its fields by name; those that are empty, usual or HIDDEN are left out."""
    fields = []
    for field in msgspec.structs.fields(what):
        value = getattr(what, field.name)
        column = isinstance(value, np.ndarray | tuple)
        if field.name in HIDDEN or (not len(value) if column else value == field.default):
            continue
        if isinstance(value, Batch) and isinstance(what, Plan):
            fields.append("batch=as submitted")
        else:
            fields.append(f"{field.name}={_value(value, field.name)}")
    return f"{type(what).__name__}({', '.join(fields)})"


def _value(value: Any, name: str = "") -> str:
    if name.endswith("_s"):
        return f"{1000 * value:.0f} ms"
    if isinstance(value, np.ndarray):
        numbers = [str(number) for number in value.tolist()]
        if len(numbers) > NUM_SHOWN + 2:
            numbers[NUM_SHOWN:-1] = [f"... {len(numbers)} in all ..."]
        return f"[{', '.join(numbers)}]"
    if isinstance(value, bytes):
        return f"{value[:4].hex()}... ({len(value)} bytes)"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return shown(value) if isinstance(value, msgspec.Struct) else repr(value)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--daemon"]:
        sys.exit(serve(Path(sys.argv[2]), sys.argv[3:]))
    way = recorded()
    if "--write" in sys.argv[1:]:
        write(way)
    else:
        print(text(way), end="")

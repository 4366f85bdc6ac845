"""The real daemon over HTTP, and beside it the engine's own rate for the same requests."""

import gc
import json
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from transformers import LlamaConfig

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.closed_loop import PATH, Streamed, closed_loop
from benchmarks.gpu.speed.engines import config_of, forget
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.model_folder import model_folder
from benchmarks.gpu.speed.requests import FIRST_ID, Request, azure_requests
from benchmarks.live import Started, started
from daemon.lab.bench.endpoint import Form

READY_S = 90.0
READY = re.compile(r"ready after [\d.]+ s \((.*)\)")
STAGE = re.compile(r"([a-z][a-z -]*) ([\d.]+) s")
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """Loops as (streams, requests, seconds until they are cut off), and the daemon's settings."""

    loops: tuple[tuple[int, int, float], ...]
    compared: int  # streams of the loop that the engine alone repeats
    max_len: int  # tokens of a request
    settings: tuple[str, ...]
    settle_s: float  # after its first answer; a worker with nothing to do captures its graphs


FULL = Case(
    ((32, 160, 20.0), (256, 512, 45.0), (128, 256, 25.0), (512, 768, 45.0)),
    256,
    8192,
    # A host pool of a quarter of the RAM takes long to pin, and nobody is swapped out here.
    ("scheduler.max_batch_tokens=2048", "memory.host_bytes=4294967296"),
    8.0,
)
TINY = Case(((2, 3, 20.0), (4, 6, 20.0)), 4, 480, ("memory.kv_blocks=128",), 0.0)
RESERVED_S = 60.0
"""For the engine alone; a loop that would take from it is left out."""


def http_figures(job: Job) -> Iterator[Figure]:
    """The daemon's start by phase, tokens a second at each number of streams, and the engine's."""
    case, config = TINY if job.tiny else FULL, config_of(job.tiny)
    began_s = time.monotonic()
    with model_folder(config, job.device) as model:
        yield Figure("model folder written", time.monotonic() - began_s, "s")
        rates: dict[int, float] = {}
        with tempfile.TemporaryDirectory(prefix="gpu-bench-daemon-") as name:
            exec_s = time.time()
            flags = _flags(case, job.device, model)
            with started(flags, Path(name)) as server:
                yield from _start_figures(server, model.name, flags, exec_s)
                time.sleep(case.settle_s)
                for loop in case.loops:
                    left_s = job.budget_s - (time.monotonic() - began_s) - RESERVED_S
                    if left_s < loop[2]:
                        break
                    streamed = _loop(server.url, _requests(case, config, loop), model.name, loop)
                    rates[loop[0]] = streamed.rate
                    name_ = f"HTTP, {loop[0]} streams"
                    yield Figure(name_, streamed.rate, "tokens/s", raw=streamed.raw())
        forget(job.device)
        yield from _alone_figures(case, config, model, job.device, rates)


def _requests(case: Case, config: LlamaConfig, loop: tuple[int, int, float]) -> list[Request]:
    """Each loop has prompts of its own: none finds another's in the prefix cache."""
    streams, count, _ = loop
    return azure_requests(count, case.max_len, config.vocab_size, seed=streams)


def _flags(case: Case, device: str, model: Path) -> list[str]:
    settings = (*case.settings, 'daemon.log_format="json"', 'daemon.log_level="debug"')
    settings = (*settings, 'predict.kind="none"', "daemon.drain_s=1.0")
    flags = ["--model", str(model), "--instance", f"{device}:mixed", "--dtype", "bfloat16"]
    return [*flags, *(word for one in settings for word in ("--set", one))]


def _loop(
    url: str, requests: Sequence[Request], model: str, loop: tuple[int, int, float]
) -> Streamed:
    form = Form(model)
    bodies = [form.body(one.prompt, one.max_tokens) for one in requests]
    streams, _, cut_s = loop
    return uvloop.run(closed_loop(url, bodies, streams, cut_s))


def _start_figures(
    server: Started, model: str, flags: Sequence[str], exec_s: float
) -> Iterator[Figure]:
    """From exec to served, and on to a first token; `raw` has what the log said when."""
    deadline_s = time.monotonic() + READY_S
    while _fault(f"{server.url}/ready"):
        if not server.alive or time.monotonic() > deadline_s:
            raise RuntimeError(f"the daemon did not get ready: {_last_word(server.log)}")
        time.sleep(POLL_S)
    ready_s = time.time() - exec_s
    log = _log(server.log, exec_s)
    yield Figure("start, exec to served", ready_s, "s", raw={"log": log, "flags": flags})
    for stage, took_s in _stages(log):
        yield Figure(f"start, of it {stage}", took_s, "s")
    began_s = time.monotonic()
    body = Form(model).body(np.full(16, FIRST_ID), 1, stream=False)
    if fault := _fault(server.url + PATH, body):
        raise RuntimeError(f"its first request was not answered: {fault}")
    yield Figure("start, first token after that", time.monotonic() - began_s, "s")


def _fault(url: str, body: bytes | None = None) -> str:
    """Why a request is not answered with 200; empty where it is."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
    except (urllib.error.URLError, OSError) as error:
        return str(error)
    return ""


def _log(log: Path, exec_s: float) -> list[tuple[float, str]]:
    """What the daemon and its processes said, and how many seconds after its exec."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            entry: dict[str, Any] = json.loads(line)
            said_s = datetime.fromisoformat(entry["time"]).timestamp()
            found.append((round(said_s - exec_s, 3), f"{entry['process']}: {entry['message']}"))
    return found


def _stages(log: list[tuple[float, str]]) -> Iterator[tuple[str, float]]:
    """The stages of a worker's start, and how many seconds each took."""
    for _, message in log:
        if found := READY.search(message):
            yield from ((stage, float(took_s)) for stage, took_s in STAGE.findall(found[1]))


def _last_word(log: Path) -> str:
    """The last thing that was said."""
    said = _log(log, 0.0)
    return said[-1][1] if said else log.read_text(errors="replace")[-300:]


def _alone_figures(
    case: Case, config: LlamaConfig, model: Path, device: str, rates: dict[int, float]
) -> Iterator[Figure]:
    """The same requests as the compared loop's, and what HTTP gave of their rate."""
    from benchmarks.gpu.speed.core_alone import CoreAlone
    from daemon.config.load import load, parse_value
    from daemon.runtime.model import find_model

    loop = next(one for one in case.loops if one[0] == case.compared)
    settings = dict(one.partition("=")[::2] for one in case.settings)
    overrides: dict[str, Any] = {
        "model.path": str(model),
        "model.dtype": "bfloat16",
        "instance": [{"device": device, "role": "mixed"}],
    } | {key: parse_value(value) for key, value in settings.items()}
    loaded = load(None, overrides).config
    alone = CoreAlone(find_model(loaded), loaded)
    gc.collect()
    gc.freeze()  # as the daemon does once it serves
    done = alone.closed_loop(_requests(case, config, loop), loop[0], loop[2])
    yield Figure(f"engine alone, {loop[0]} streams", done.rate, "tokens/s", raw=asdict(done))
    idle = 100 * done.idle_s / done.seconds
    yield Figure("engine alone, waiting for plans", idle, "%", note="goal 1")
    if loop[0] in rates:
        name, key = f"HTTP over engine alone, {loop[0]} streams", f"http_{loop[0]}"
        yield Figure(name, rates[loop[0]], "tokens/s", done.rate, key=key)

"""A run as a trace for ui.perfetto.dev or chrome://tracing: instances, links, requests."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon.base.files import appearing
from daemon.lab.report.errors import ReportError
from daemon.lab.report.numbers import plain
from daemon.lab.report.records import InstanceLog, Outcome, RequestLog, RunLog, Span

INSTANCES, LINKS, REQUESTS = 1, 2, 3  # the trace's "processes"
REQUEST_THREAD = 1

Event = dict[str, Any]


def write_trace(run: RunLog, path: Path) -> None:
    """Write the trace, one event a line, without holding it in memory. Raises ReportError."""
    encode = msgspec.json.Encoder(enc_hook=plain).encode
    try:
        with appearing(path) as partial, partial.open("wb") as file:
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
            separator = b"\n"
            for event in events(run):
                file.write(separator)
                file.write(encode(event))
                separator = b",\n"
            file.write(b"\n]}\n")
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error


def events(run: RunLog) -> Iterator[Event]:
    """Every event of the trace, in the Trace Event Format; times in microseconds."""
    for process, name in ((INSTANCES, "instances"), (LINKS, "links"), (REQUESTS, "requests")):
        yield _name("process_name", process, name)
    yield from _spans(run)
    for instance in run.instances:
        yield from _counters(instance)
    begin_s = float(run.requests.arrival_s[0]) if len(run.requests) else 0.0
    for row in range(len(run.requests)):
        yield from _request(run.requests, row, begin_s + run.virtual_s)


def phases(requests: RequestLog, row: int, end_s: float) -> list[tuple[str, float, float]]:
    """The phases of a request as (name, begin, end) in seconds; each begins where the last ended.

    An unfinished request's current phase ends with the run; a failed request's is unknown and left
    out. A client that cannot see the queue has one phase up to the first token.
    """
    arrival_s, started_s, first_s, last_s = (
        float(column[row])
        for column in (requests.arrival_s, requests.started_s, requests.first_s, requests.last_s)
    )
    if np.isnan(started_s) and not np.isnan(first_s):
        steps = [("first token", first_s), ("decode", last_s)]
    else:
        steps = [("queued", started_s), ("prefill", first_s), ("decode", last_s)]
    unfinished = requests.outcome[row] == Outcome.UNFINISHED
    found = []
    at_s = arrival_s
    for name, until_s in steps:
        open_ended = unfinished and (np.isnan(until_s) or name == "decode")
        reached_s = end_s if open_ended else until_s
        if np.isnan(reached_s):
            break
        found.append((name, at_s, reached_s))
        at_s = reached_s
        if open_ended:
            break
    return found


def _spans(run: RunLog) -> Iterator[Event]:
    """Spans of each track in order of time; overlapping ones lie on lanes of their own."""
    tracks: dict[str, list[Span]] = defaultdict(list)
    for span in run.spans:
        tracks[span.track].append(span)
    instances = {instance.name for instance in run.instances}
    first = REQUEST_THREAD + 1
    for track, spans in tracks.items():
        process = INSTANCES if track in instances else LINKS
        num_lanes = 0
        for lane, span in _lanes(spans):
            thread = first + lane
            if lane == num_lanes:
                name = f"{track} ({lane + 1})" if lane else track
                yield _name("thread_name", process, name) | {"tid": thread}
                num_lanes += 1
            begin = _us(span.start_s)
            duration = _us(span.start_s + span.duration_s) - begin
            about: Event = {"ph": "X", "pid": process, "tid": thread, "name": span.name}
            yield about | {"ts": begin, "dur": duration, "args": span.detail}
        first += num_lanes


def _name(kind: str, process: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "name": kind, "args": {"name": name}}


def _lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with the lowest lane that is free when it begins."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end in us, lane)
    for span in sorted(spans, key=lambda span: span.start_s):
        begin = _us(span.start_s)
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (_us(span.start_s + span.duration_s), lane))
        yield lane, span


def _counters(instance: InstanceLog) -> Iterator[Event]:
    """The samples of an instance as two counter tracks: sequences and shares of KV memory."""
    tracks: dict[str, dict[str, Sequence[float]]] = {
        "sequences": {"running": instance.sample_running, "waiting": instance.sample_waiting},
        "KV": {"allocated": instance.sample_allocated, "written": instance.sample_written},
    }
    for track, series in tracks.items():
        about: Event = {"ph": "C", "pid": INSTANCES, "name": f"{instance.name} {track}"}
        for at_s, *values in zip(instance.sample_s, *series.values(), strict=False):
            yield about | {"ts": _us(at_s), "args": dict(zip(series, values, strict=True))}


def _request(requests: RequestLog, row: int, end_s: float) -> Iterator[Event]:
    """A request as an async slice with its phases inside, or as an instant if it had none.

    All have the same name, so that the viewer packs them onto few lines.
    """
    about: Event = {"pid": REQUESTS, "tid": REQUEST_THREAD, "cat": "request", "id": row}
    detail = {
        "request": row,
        "outcome": Outcome(int(requests.outcome[row])).name.lower(),
        "instance": int(requests.instance[row]),
        "prompt_tokens": int(requests.prompt_tokens[row]),
        "output_tokens": int(requests.output_tokens[row]),
        "preemptions": int(requests.preemptions[row]),
        "recomputed_tokens": int(requests.recomputed_tokens[row]),
    }
    begin = _us(float(requests.arrival_s[row]))
    parts = phases(requests, row, end_s)
    if not parts:
        yield about | {"ph": "n", "name": detail["outcome"], "ts": begin, "args": detail}
        return
    yield about | {"ph": "b", "name": "request", "ts": begin, "args": detail}
    for phase, begin_s, phase_end_s in parts:
        yield about | {"ph": "b", "name": phase, "ts": _us(begin_s)}
        yield about | {"ph": "e", "name": phase, "ts": _us(phase_end_s)}
    yield about | {"ph": "e", "name": "request", "ts": _us(parts[-1][2])}


def _us(seconds: float) -> int:
    """Whole microseconds: fractions would make neighbours overlap in the viewer's arithmetic."""
    return round(seconds * 1e6)

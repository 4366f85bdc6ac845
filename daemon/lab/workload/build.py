"""Build a workload: lengths, then times, then classes, each from a random stream of its own."""

from dataclasses import dataclass, replace
from importlib.resources import as_file, files

import numpy as np

from daemon.base.nearest import unknown
from daemon.lab.workload.arrivals import draw_arrivals
from daemon.lab.workload.length_distributions import DISTRIBUTIONS, SKEW_OUTPUT
from daemon.lab.workload.marginals import whole
from daemon.lab.workload.slo import assign_classes
from daemon.lab.workload.traces import Trace, read_trace
from daemon.lab.workload.workload import Float64, Workload, WorkloadError, WorkloadSpec

AZURE_CONV = "azure-conv"
_AZURE_FILE = "data/AzureLLMInferenceTrace_conv.csv.gz"
DEFAULT_REQUESTS = 1000
_CHUNK = 4096  # rows drawn at a time, always: a longer run begins with the shorter one
_HOPELESS_SHARE = 0.001  # of draws that fit
_HOPELESS_DRAWS = 16 * _CHUNK


@dataclass(frozen=True)
class _Kept:
    """The requests of a run before they have their times."""

    trace: Trace
    source: str
    num_dropped: int


def build(spec: WorkloadSpec, max_len: int) -> Workload:
    """The workload of `spec`, of requests within `max_len` tokens each.

    Changing arrivals, rate or classes leaves the lengths as they are. Raises WorkloadError for a
    specification or a trace that cannot be used, OSError for a trace that cannot be read.
    """
    check(spec)
    if max_len < 2:
        raise WorkloadError(f"a context of {max_len} tokens holds no prompt with an answer")
    streams = np.random.SeedSequence(spec.seed).spawn(4)
    lengths, arrivals, classes, groups = (np.random.default_rng(stream) for stream in streams)
    kept = _kept(spec, max_len, lengths)
    kept = replace(kept, trace=_drifted(_sharing(kept.trace, spec, groups), spec.drift, max_len))
    times_s, timing = _times(spec, kept, arrivals)
    return Workload(
        label=_label(spec, max_len, kept, timing),
        arrival_s=times_s,
        prompt_tokens=kept.trace.prompt_tokens,
        output_tokens=kept.trace.output_tokens,
        slo_class=assign_classes(spec.classes, len(kept.trace), classes),
        classes=spec.classes,
        prefixes=kept.trace.prefixes,
        prefix_block=kept.trace.prefix_block,
        num_dropped=kept.num_dropped,
    )


def _sharing(trace: Trace, spec: WorkloadSpec, rng: np.random.Generator) -> Trace:
    """The trace with prompts that share the beginning of their group's. Raises WorkloadError."""
    if not spec.shared_prefix:
        return trace
    if trace.prefixes:
        raise WorkloadError("shared_prefix: the trace says itself which prompts begin alike")
    groups = rng.integers(spec.prefix_groups, size=len(trace)).tolist()
    return replace(trace, prefixes=[(group,) for group in groups], prefix_block=spec.shared_prefix)


def _drifted(trace: Trace, drift: float, max_len: int) -> Trace:
    """The trace with answers that grow or shrink evenly along it, within `max_len` tokens."""
    if drift == 1.0:
        return trace
    factors = drift ** np.linspace(0.0, 1.0, len(trace))
    longest = max_len - trace.prompt_tokens
    outputs = np.clip(np.rint(trace.output_tokens * factors), 1, longest).astype(np.int32)
    return replace(trace, output_tokens=outputs)


def names() -> list[tuple[str, str]]:
    """Every named workload with a line about it."""
    azure = (AZURE_CONV, "the Azure conversation trace of 2023: 19,366 requests with their times")
    return [azure, *((name, make().summary) for name, make in DISTRIBUTIONS.items())]


def check(spec: WorkloadSpec) -> None:
    """Refuse faults that show before anything is read. Raises WorkloadError."""
    if spec.trace is not None and spec.name not in ("", "skew"):
        raise WorkloadError(f"workload: give a trace or the name {spec.name!r}, not both")
    if spec.trace is None and spec.name not in (AZURE_CONV, *DISTRIBUTIONS):
        if not spec.name:
            raise WorkloadError("which requests? give --trace FILE or --workload NAME")
        raise WorkloadError(unknown("workload", spec.name, (AZURE_CONV, *DISTRIBUTIONS)))
    if spec.requests < 0 or spec.seed < 0:
        raise WorkloadError("workload: requests and seed must not be below 0")
    for key in ("rate", "rate_scale"):
        value = getattr(spec, key)
        if not 0 <= value < float("inf"):
            raise WorkloadError(f"{key}: must be a finite number above 0, got {value}")
    if not 0 < spec.drift < float("inf"):
        raise WorkloadError(f"drift: must be a finite number above 0, got {spec.drift}")
    if spec.shared_prefix < 0 or spec.prefix_groups < 1:
        raise WorkloadError("shared_prefix must not be below 0, prefix_groups not below 1")
    if spec.prefix_groups > 1 and not spec.shared_prefix:
        raise WorkloadError("prefix_groups: without shared_prefix, nothing is shared in a group")
    if spec.rate and spec.rate_scale:
        raise WorkloadError("rate_scale: is given together with rate: give one of them")
    if spec.trace is None and spec.name in DISTRIBUTIONS and not spec.rate_scale:
        _check_rate(spec, spec.name)


def _check_rate(spec: WorkloadSpec, source: str) -> None:
    process = spec.arrivals or "poisson"
    if process != "closed" and not spec.rate:
        raise WorkloadError(
            f"{process} arrivals need a rate: give --rate R (requests/s; in a file, rate = R), "
            f"or --arrivals closed for all of {source} at once"
        )


def _kept(spec: WorkloadSpec, max_len: int, rng: np.random.Generator) -> _Kept:
    if spec.trace is not None:
        trace, source = read_trace(spec.trace), spec.trace.name
        if spec.name == "skew":
            outputs = whole(SKEW_OUTPUT(rng.standard_normal(len(trace)))).astype(np.int32)
            trace, source = replace(trace, output_tokens=outputs), f"skew of {source}"
        if trace.time_s is None or spec.arrivals:
            trace, source = _again(trace, source, spec.requests, max_len)
        return _first(trace, source, spec.requests, max_len)
    if spec.name == AZURE_CONV:
        with as_file(files("daemon.lab.workload").joinpath(_AZURE_FILE)) as path:
            return _first(read_trace(path), AZURE_CONV, spec.requests, max_len)
    return _drawn(spec.name, spec.requests or DEFAULT_REQUESTS, max_len, rng)


def _again(trace: Trace, source: str, requests: int, max_len: int) -> tuple[Trace, str]:
    """A trace whose times will be generated: its rows repeated if fewer than `requests` fit."""
    fitting = int(np.count_nonzero(trace.within(max_len)))
    if not 0 < fitting < requests:
        return trace, source
    times = -(-requests // fitting)
    repeated = trace.take(np.resize(np.arange(len(trace)), times * len(trace)))
    return repeated, f"{source}, rows repeated"


def _first(trace: Trace, source: str, requests: int, max_len: int) -> _Kept:
    """The first `requests` rows that fit, all for 0; counts the rows left out before them."""
    fitting = np.flatnonzero(trace.within(max_len))
    if fitting.size < max(requests, 1):
        raise WorkloadError(
            f"{source}: {fitting.size} of {len(trace)} requests have a prompt and an answer "
            f"within {max_len} tokens, asked for {requests or 'all'}"
        )
    index = fitting[:requests] if requests else fitting
    passed = int(index[-1]) + 1 if requests else len(trace)
    return _Kept(trace.take(index), source, passed - index.size)


def _drawn(name: str, requests: int, max_len: int, rng: np.random.Generator) -> _Kept:
    """Generate rows until `requests` of them fit."""
    distribution = DISTRIBUTIONS[name]()
    chunks: list[Trace] = []
    fitting = drawn = 0
    while fitting < requests:
        chunks.append(Trace(*distribution.draw(_CHUNK, rng)))
        fitting += int(np.count_nonzero(chunks[-1].within(max_len)))
        drawn += _CHUNK
        if drawn >= _HOPELESS_DRAWS and fitting < _HOPELESS_SHARE * drawn:
            raise WorkloadError(
                f"{name}: {fitting} of {drawn} draws fit {max_len} tokens; "
                f"this workload needs a longer context"
            )
    prompts = np.concatenate([chunk.prompt_tokens for chunk in chunks])
    outputs = np.concatenate([chunk.output_tokens for chunk in chunks])
    return _first(Trace(prompts, outputs), name, requests, max_len)


def _times(spec: WorkloadSpec, kept: _Kept, rng: np.random.Generator) -> tuple[Float64, str]:
    """Times from the run's start, and their description."""
    own_s, count = kept.trace.time_s, len(kept.trace)
    if spec.rate_scale and (own_s is None or spec.arrivals):
        reason = (
            "leave arrivals out" if own_s is not None else f"{kept.source} has none; use --rate"
        )
        raise WorkloadError(f"rate_scale: makes a trace's own times faster: {reason}")
    if own_s is None or spec.arrivals:
        process = spec.arrivals or "poisson"
        _check_rate(spec, kept.source)
        at = "closed (all at once)"
        if process != "closed":
            at = f"{process} at {spec.rate:g} requests/s"
        return draw_arrivals(process, count, spec.rate, rng), at
    times_s = own_s - own_s[0]
    if spec.rate_scale:
        return times_s / spec.rate_scale, f"own times, {spec.rate_scale:g} times as fast"
    if not spec.rate or count == 1:
        return times_s, "own times"
    if not times_s[-1]:
        raise WorkloadError(f"rate: {count} requests at one time cannot be stretched; use arrivals")
    own_rate = (count - 1) / times_s[-1]
    return times_s * (own_rate / spec.rate), f"own times, stretched to {spec.rate:g} requests/s"


def _label(spec: WorkloadSpec, max_len: int, kept: _Kept, timing: str) -> str:
    dropped = f" ({kept.num_dropped:,} dropped)" if kept.num_dropped else ""
    count = f"{len(kept.trace):,} requests within {max_len:,} tokens{dropped}"
    more = f", answers drift to {spec.drift:g} times" if spec.drift != 1.0 else ""
    if spec.shared_prefix:
        groups = f" in {spec.prefix_groups} groups" if spec.prefix_groups > 1 else ""
        more += f", {spec.shared_prefix} prompt tokens shared{groups}"
    return f"{kept.source}: {count}, {timing}{more}, seed {spec.seed}"

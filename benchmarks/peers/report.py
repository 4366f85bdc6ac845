"""From runs to numbers: per run, per server over all rounds, and llmd's ratio to the others."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.load import Answer
from benchmarks.peers.workload import Mode

OURS = "llmd"
Run = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """One number of a run: its key, how it is shown, and whether more of it is better."""

    key: str
    title: str
    more_is_better: bool = False


SPEED = Metric("tok_per_s", "output tok/s", more_is_better=True)
TTFT = Metric("ttft_mean_ms", "TTFT mean ms")
CPU = Metric("cpu_ms_per_token", "processor ms a token")
"""What a server computes for a token, all processes: other work disturbs it less than the clock."""
PREFILL_CPU = Metric("cpu_ms_per_request", "processor ms a prompt")
MEMORY = (
    Metric("rss_mb", "RSS of all processes, MiB"),
    Metric("pss_mb", "memory (PSS), MiB"),
    Metric("beyond_weights_mb", "memory beyond the weights, MiB"),
)
METRICS: dict[str, tuple[Metric, ...]] = {
    "single": (Metric("decode_tok_per_s", "decode tok/s", more_is_better=True), TTFT, CPU),
    "c8": (SPEED, TTFT, CPU),
    "c32": (SPEED, TTFT, CPU, *MEMORY),
    "prefill": (TTFT, PREFILL_CPU, *MEMORY),
    "bursty": (
        Metric("normalised_mean_ms", "normalised mean ms"),
        Metric("normalised_p95_ms", "normalised p95 ms"),
        Metric("normalised_short_mean_ms", "normalised mean ms, short answers"),
        Metric("normalised_long_mean_ms", "normalised mean ms, long answers"),
        TTFT,
        Metric("ttft_p95_ms", "TTFT p95 ms"),
        Metric("tpot_mean_ms", "TPOT mean ms"),
        Metric("tpot_p95_ms", "TPOT p95 ms"),
    ),
    "kv": (
        Metric("not_whole", "failed or short answers"),
        Metric("tok_per_s", "output tok/s of answers that did not fail", more_is_better=True),
    ),
}


def _p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def _ms(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, median and 95th percentile, in milliseconds."""
    if not values:
        return {}
    measures = {"mean": statistics.fmean(values), "p50": statistics.median(values)}
    measures["p95"] = _p95(values)
    return {f"{name}_{key}_ms": round(1000 * value, 2) for key, value in measures.items()}


def measure(mode: Mode, answers: list[Answer], wall_s: float) -> Run:
    """The numbers of one run. Answers that failed count in no time; short ones do."""
    good = [answer for answer in answers if not answer.error]
    num_short = sum(answer.short for answer in good)
    num_failed = len(answers) - len(good)
    run: Run = {"failed": num_failed, "short": num_short, "not_whole": num_failed + num_short}
    run["tok_per_s"] = round(sum(answer.tokens for answer in good) / wall_s, 2)
    run |= _ms("ttft", [answer.first_s for answer in good])
    per_token = [answer.per_token_s for answer in good if answer.tokens > 1]
    run |= _ms("tpot", per_token)
    run |= _ms("normalised", [answer.normalised_s for answer in good])
    lengths = sorted(length for length, _ in mode.outputs)
    if len(lengths) > 1:
        for name, length in (("short", lengths[0]), ("long", lengths[-1])):
            chosen = [one.normalised_s for one in good if one.asked_tokens == length]
            run |= _ms(f"normalised_{name}", chosen)
    if per_token and mode.name == "single":
        run["decode_tok_per_s"] = round(1 / statistics.fmean(per_token), 2)
    errors = sorted({answer.error for answer in answers if answer.error})
    return run | ({"errors": errors[:3]} if errors else {})


def processor_time(answers: list[Answer], used: dict[str, float]) -> Run:
    """What a server's processes computed for each token and each request, of `CpuUse`'s fields."""
    server_ms = 1000 * used["server"] * used["wall_s"]
    num_tokens = sum(answer.tokens for answer in answers)
    per_token = {"cpu_ms_per_token": round(server_ms / num_tokens, 2)} if num_tokens else {}
    return per_token | {"cpu_ms_per_request": round(server_ms / len(answers), 1)}


def _num_alike(one: str, other: str) -> int:
    """How many characters two texts share from the start."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def agreement(texts: dict[str, list[str]]) -> dict[str, Any]:
    """How many sample prompts all servers answered alike, and where each leaves the first one.

    Servers round differently, so near ties between two tokens may fall either way: texts that
    part late do not mean much, texts that part at once mean another model.
    """
    by_prompt = list(zip(*texts.values(), strict=True))
    same = sum(len(set(answers)) == 1 for answers in by_prompt)
    reference = next(iter(texts.values()), [])
    alike = {
        name: [_num_alike(*pair) for pair in zip(answers, reference, strict=True)]
        for name, answers in texts.items()
    }
    result = {"prompts": len(by_prompt), "same": same, "texts": texts}
    return result | {"characters_like_the_first_server": alike}


def _ratio(metric: Metric, ours: float, theirs: float) -> float | None:
    """How many times better ours is; below 1 it is worse."""
    above, below = (ours, theirs) if metric.more_is_better else (theirs, ours)
    return round(above / below, 3) if below else None


def _summarise_metric(metric: Metric, runs: list[Run], servers: Iterable[str]) -> dict[str, Any]:
    """Each server's median and spread, then llmd's ratio to each and to the best of them."""
    rows: dict[str, dict[str, Any]] = {}
    for server in servers:
        values = [run[metric.key] for run in runs if run["server"] == server and metric.key in run]
        if values:
            median = round(statistics.median(values), 2)
            rows[server] = {"median": median, "min": min(values), "max": max(values)}
    peers = {name: row["median"] for name, row in rows.items() if name != OURS}
    summary: dict[str, Any] = {"title": metric.title, "servers": rows}
    if OURS in rows and peers:
        ours = rows[OURS]["median"]
        best = (max if metric.more_is_better else min)(peers, key=lambda name: peers[name])
        for name, theirs in peers.items():
            rows[name]["llmd_ratio"] = _ratio(metric, ours, theirs)
        summary |= {"best_peer": best, "llmd_ratio_to_best": rows[best]["llmd_ratio"]}
    return summary


def summarise(runs: list[Run], servers: list[str]) -> dict[str, Any]:
    """All modes that were run, in order, with all their metrics."""
    summary: dict[str, Any] = {}
    for mode, metrics in METRICS.items():
        chosen = [run for run in runs if run["mode"] == mode]
        if chosen:
            parts = {metric.key: _summarise_metric(metric, chosen, servers) for metric in metrics}
            summary[mode] = parts
    return summary


def table(summary: dict[str, Any]) -> str:
    """The summary in Markdown: a table for each format, with a column for each server."""
    return "\n".join(
        line for name, modes in summary.items() if modes for line in _format_table(name, modes)
    )


def _format_table(name: str, modes: dict[str, Any]) -> Iterable[str]:
    """The lines of one format's table."""
    found = [(mode, one) for mode, parts in modes.items() for one in parts.values()]
    metrics = [(mode, one) for mode, one in found if one["servers"]]
    servers = list(dict.fromkeys(server for _, one in metrics for server in one["servers"]))
    yield from ("", f"| {name} | {' | '.join(servers)} | {OURS} to the best of them |")
    yield "| --- |" + " --- |" * (len(servers) + 1)
    for mode, metric in metrics:
        cells = [_cell(metric["servers"].get(server)) for server in servers]
        ratio = metric.get("llmd_ratio_to_best")
        cells.append("" if ratio is None else f"{ratio:.2f}")
        yield f"| {mode}: {metric['title']} | {' | '.join(cells)} |"


def _cell(row: dict[str, Any] | None) -> str:
    """Median and spread."""
    return f"{row['median']:.4g} ({row['min']:.4g}-{row['max']:.4g})" if row else ""

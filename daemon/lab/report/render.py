"""Forms of a report: JSON for scripts, text for people, and a run as CSV, one row per request."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from daemon.lab.report.measures import measure
from daemon.lab.report.numbers import (
    UNKNOWN,
    aligned,
    percent,
    plain,
    printable,
    seconds,
    three_digits,
    wrapped,
)
from daemon.lab.report.records import Outcome, RequestLog, RunLog
from daemon.lab.report.report import InstanceReport, Report, Stats
from daemon.state.role import Role

WIDTH = 100  # characters

LATENCIES = {
    "TTFT": "ttft_s",
    "TPOT": "tpot_s",
    "TBT": "tbt_s",
    "second token": "second_token_s",
    "longest gap": "longest_gap_s",
    "paused": "paused_s",
    "JCT": "jct_s",
    "JCT / token": "normalized_latency_s",
    "queueing": "queueing_s",
}
"""The name of each measure for people, and its field."""
_WAITS = {"waits for swaps": "swap_s", "waits for handoffs": "transfer_s"}

_INSIDE = (
    *("preemptions", "preempted_after_first", "recomputed_tokens", "loans"),
    *("swap_s", "transfer_s"),
)
"""Columns of a request that a client cannot know."""


def as_json(report: Report) -> str:
    """The report with its keys in the order of `Report`; unknown values are null."""
    return msgspec.json.format(msgspec.json.encode(report, enc_hook=plain).decode(), indent=2)


def as_text(report: Report) -> str:
    """The report for people, within 100 columns."""
    table = [["", *Stats.__struct_fields__]]
    for name, field in (LATENCIES | _WAITS).items():
        values = msgspec.structs.astuple(getattr(report, field))
        if any(values) or name in LATENCIES:
            table.append([name, *(seconds(value) for value in values)])
    parts = [list(_head(report)), aligned(table, gap=4), list(_facts(report))]
    if report.instances:
        parts.append(aligned(_instance_rows(report)))
    if any(
        instance.transfers or instance.role not in ("", Role.MIXED) for instance in report.instances
    ):
        parts.append(aligned(_role_rows(report)))
    if any(instance.operators for instance in report.instances):
        parts.append(aligned(_operator_rows(report)))
    return "\n\n".join("\n".join(wrapped(part, WIDTH)) for part in parts)


def as_csv(run: RunLog) -> str:
    """Every request as a row: its log and its latencies, floats at full precision.

    Cells are empty where a value never came.
    """
    columns = _columns(run.requests)
    if not run.instances:
        columns |= dict.fromkeys(_INSIDE, [""] * len(run.requests))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _head(report: Report) -> Iterator[str]:
    yield report.label
    policy = f"policy {report.policy}, " if report.policy else ""
    origin = f"{report.kind}, {policy}{report.profile}, seed {report.seed}"
    yield f"{origin}, predictor {report.predictor}" if report.predictor else origin
    unfinished = report.requests - report.finished - report.rejected - report.failed
    dropped = f"; {report.dropped:,} more were too long" if report.dropped else ""
    yield (
        f"{report.requests:,} requests: {report.finished:,} finished, {report.rejected:,} rejected,"
        f" {report.failed:,} failed, {unfinished:,} unfinished{dropped}"
    )
    if report.kind == "simulated":
        yield f"{seconds(report.virtual_s)} simulated in {seconds(report.wall_s)}"
    else:
        yield f"{seconds(report.virtual_s)} {report.kind}"


def _facts(report: Report) -> Iterator[str]:
    asked = f" of {three_digits(report.rate_rps)} asked" if report.rate_rps is not None else ""
    facts = {
        "throughput": f"{three_digits(report.throughput_rps)} requests/s{asked}, "
        f"{three_digits(report.output_tokens_per_s)} tokens/s",
    }
    if report.capacity_rps is not None:
        facts["capacity"] = f"{three_digits(report.capacity_rps)} requests/s"
        facts |= _search(report.capacity or {})
    if report.slo_attainment is not None:
        facts["promises"] = (
            f"{percent(report.slo_attainment)} met, goodput {three_digits(report.goodput_rps)} "
            "requests/s"
        )
        if len(report.slo_by_class) > 1:
            kept = (f"{name} {percent(share)}" for name, share in report.slo_by_class.items())
            facts["  by class"] = ", ".join(kept)
    facts["unserved"] = (
        f"{percent(report.unserved_tokens_fraction)} of the tokens asked, at the last arrival"
    )
    facts["preemptions"] = UNKNOWN
    if report.preemptions is not None:
        facts["preemptions"] = (
            f"{report.preemptions:,}; {percent(report.preempted_requests_fraction)} of requests "
            f"after their first token; {_count(report.recomputed_tokens)} tokens recomputed, "
            f"{_count(report.swaps)} swaps, "
            f"{_count(report.uploaded_ahead_blocks)} blocks uploaded ahead"
        )
    if report.loans:
        facts["loans"] = f"{report.loans:,} of reserved memory, until it is needed"
    if report.handoffs or report.sent_bytes:
        sent = three_digits((report.sent_bytes or 0) / 1e9, "GB")
        failed = f"{_count(report.handoffs_failed)} transfers failed or arrived wrong"
        facts["handoffs"] = f"{_count(report.handoffs)}; {sent} sent, {failed}"
    if report.kv_allocated_fraction is not None:
        facts["KV memory"] = (
            f"{percent(report.kv_allocated_fraction)} allocated, "
            f"{percent(report.kv_written_fraction)} written"
        )
    if report.iterations is None:
        facts["steps"] = UNKNOWN
    elif report.iterations:
        facts["steps"] = (
            f"{report.iterations:,} of {three_digits(report.mean_step_tokens)} tokens, "
            f"MFU {percent(report.mfu)}"
        )
    if report.energy_j is not None:
        facts["energy"] = (
            f"{three_digits(report.energy_j, 'J')}, {three_digits(report.mean_power_w, 'W')}, "
            f"{three_digits(report.energy_per_token_j, 'J')} a token"
        )
    width = max(len(name) for name in facts)
    return (f"{name:<{width}}  {fact}" for name, fact in facts.items())


def _search(found: dict[str, Any]) -> dict[str, str]:
    """The facts of a capacity search, without the rates tried, which JSON has."""
    facts = {}
    for name, value in found.items():
        if isinstance(value, int):
            facts[f"  {name}"] = _count(value)
        elif isinstance(value, str | float):
            text = value if isinstance(value, str) else three_digits(value)
            facts[f"  {name}"] = text or UNKNOWN
    return facts


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _instance_rows(report: Report) -> list[list[str]]:
    head = "INSTANCE DEVICES STEPS BUSY TOKENS/STEP RUNNING MFU POWER ENERGY"
    return [head.split(), *(_instance_row(instance) for instance in report.instances)]


def _role_rows(report: Report) -> list[list[str]]:
    rows = [
        [
            printable(instance.name)[:20],
            instance.role,
            f"{instance.transfers:,}",
            three_digits(instance.sent_bytes / 1e9, "GB"),
            seconds(instance.transfer_s),
        ]
        for instance in report.instances
    ]
    return [["INSTANCE", "ROLE", "TRANSFERS", "SENT", "IN"], *rows]


def _operator_rows(report: Report) -> list[list[str]]:
    rows = [
        [
            printable(f"{instance.name[:20]} {name}"),
            f"{operator.calls:,}",
            three_digits(operator.mean_size),
            seconds(operator.time_s),
        ]
        for instance in report.instances
        for name, operator in instance.operators.items()
    ]
    return [["OPERATOR", "CALLS", "MEAN INPUT", "TIME"], *rows]


def _instance_row(instance: InstanceReport) -> list[str]:
    return [
        printable(instance.name)[:20],
        str(instance.devices),
        f"{instance.steps:,}",
        percent(instance.busy_fraction),
        three_digits(instance.mean_step_tokens),
        three_digits(instance.mean_running),
        percent(instance.mfu),
        three_digits(instance.mean_power_w, "W"),
        three_digits(instance.energy_j, "J"),
    ]


def _columns(requests: RequestLog) -> dict[str, list[str]]:
    """Every column of the CSV file by its name, as text."""
    columns = {"request": [str(row) for row in range(len(requests))]}
    for name in RequestLog.__slots__:
        if name not in ("gap_s", "gap_request"):
            columns[name] = [_cell(value) for value in getattr(requests, name)]
    columns["outcome"] = [Outcome(code).name.lower() for code in requests.outcome.tolist()]
    measures = measure(requests)
    for name in type(measures).__slots__:
        columns[name] = [_cell(value) for value in getattr(measures, name)]
    return columns


def _cell(value: np.generic) -> str:
    """A number in the fewest digits that read back as the same number; NaN is empty."""
    if isinstance(value, np.bool_):
        return str(int(value))
    return "" if value != value else str(value)

"""A run's own soundness: lateness, CPU use, errors, lengths, cached prompts."""

from collections.abc import Iterator

import numpy as np

from daemon.lab.bench.answer import ClientAnswer
from daemon.lab.bench.errors import error_lines
from daemon.lab.bench.load import SentLoad
from daemon.lab.report.records import Float64, Outcome
from daemon.lab.workload.workload import Workload

LATE_S = 0.050
"""99th percentile of lateness above which the report's label mentions it."""

BUSY_SHARE = 0.7
"""Share of a core above which this process may be the bottleneck, in runs of a second or more."""


def lateness_p99_s(sent: SentLoad, workload: Workload) -> float:
    """The 99th percentile of how late requests' headers left; 0 where none left."""
    late_s = _lateness_s(sent, workload)
    return float(np.percentile(late_s, 99)) if late_s.size else 0.0


def findings(
    sent: SentLoad, workload: Workload, *, fixed_length: bool, own_prompts: bool
) -> Iterator[str]:
    """Sentences for people, after a run.

    `fixed_length`: answers were asked to be as long as the workload says. `own_prompts`: no two
    prompts begin alike, as those of chats do with their template.
    """
    late_s = _lateness_s(sent, workload)
    if late_s.size:
        p50, p99 = np.percentile(late_s, (50, 99)) * 1e3
        yield f"requests left {p50:.1f} ms (p50) and {p99:.1f} ms (p99) after their time"
    wall_s = max(sent.end_s - sent.start_s, 1e-9)
    num_events = sum(len(answer.token_s) for answer in sent.answers)
    share = sent.cpu_s / wall_s
    yield (
        f"this process used {share:.0%} of a core for {num_events / wall_s:,.0f} events/s"
        + (": it may be the bottleneck" if share > BUSY_SHARE and wall_s >= 1 else "")
    )
    done = [answer for answer in sent.answers if answer.outcome is Outcome.FINISHED]
    yield from _token_findings(done)
    if fixed_length:
        yield from _length_findings(sent.answers, workload)
    if own_prompts:
        yield from _cache_findings(done)
    yield from error_lines(answer.error for answer in sent.answers)


def _lateness_s(sent: SentLoad, workload: Workload) -> Float64:
    left_s = np.array([answer.sent_s for answer in sent.answers]) - sent.start_s
    late_s = left_s - workload.arrival_s[: left_s.size]
    return late_s[~np.isnan(late_s)]


def _token_findings(done: list[ClientAnswer]) -> Iterator[str]:
    if any(not answer.output_tokens for answer in done):
        yield "the server sends no usage: output tokens are counted as events"
    num_tokens = sum(answer.num_tokens for answer in done)
    num_events = sum(len(answer.token_s) for answer in done)
    if num_tokens > 1.02 * num_events > 0:
        yield f"{num_tokens / num_events:.2f} tokens an event: gaps are those between events"


def _length_findings(answers: list[ClientAnswer], workload: Workload) -> Iterator[str]:
    pairs = zip(answers, workload.output_tokens.tolist(), strict=False)
    other = sum(a.outcome is Outcome.FINISHED and a.num_tokens != asked for a, asked in pairs)
    if other:
        yield f"{other} answers are not as long as asked: the server does not honour ignore_eos"


def _cache_findings(done: list[ClientAnswer]) -> Iterator[str]:
    cached = sum(answer.cached_tokens for answer in done)
    total = sum(answer.prompt_tokens for answer in done)
    if cached > 0.01 * total > 0:
        yield (
            f"{cached / total:.0%} of prompt tokens came from the server's prefix cache, though "
            "no prompts share a prefix: were these prompts sent before? (--prompt-seed)"
        )

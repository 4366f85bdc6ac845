"""From a run's columns to latencies of requests, tokens delivered and means over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daemon.lab.report.records import Float32, Float64, Int32, Outcome, RequestLog
from daemon.state.pause import MIN_PAUSE_S, PAUSE_TIMES

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measures:
    """Latencies in seconds, a row for each of N requests; NaN where a request has none.

    A request has a TTFT once it has a token, its longest gap and its second token's time once it
    has two and a queueing time once it ran, however it ends; the other three are defined for
    finished requests only.
    """

    ttft_s: Float64
    tpot_s: Float64  # more than one token
    jct_s: Float64
    normalized_latency_s: Float64
    queueing_s: Float64
    longest_gap_s: Float32  # between two tokens
    second_token_s: Float32  # after the first


def measure(requests: RequestLog) -> Measures:
    """The latencies of every request."""
    finished = requests.outcome == Outcome.FINISHED
    num_tokens = requests.output_tokens.astype(np.float64)
    jct_s = np.where(finished, requests.last_s - requests.arrival_s, np.nan)
    decode_s = np.where(finished, requests.last_s - requests.first_s, np.nan)
    return Measures(
        ttft_s=requests.first_s - requests.arrival_s,
        tpot_s=_quotient(decode_s, num_tokens - 1),
        jct_s=jct_s,
        normalized_latency_s=_quotient(jct_s, num_tokens),
        queueing_s=requests.started_s - requests.arrival_s,
        longest_gap_s=_longest(requests),
        second_token_s=_second(requests),
    )


def pauses_seen(gap_s: Float32, gap_request: Int32, num_requests: int) -> Float32:
    """Seconds that each request paused, [num_requests], as its client sees it.

    The excess of each long gap over the median of all gaps; long is over PAUSE_TIMES that median,
    and over MIN_PAUSE_S.
    """
    usual_s = float(np.median(gap_s)) if gap_s.size else 0.0
    long = gap_s > max(PAUSE_TIMES * usual_s, MIN_PAUSE_S)
    paused = np.bincount(gap_request[long], gap_s[long] - usual_s, minlength=num_requests)
    return paused.astype(np.float32)


def _longest(requests: RequestLog) -> Float32:
    longest = np.full(len(requests), np.nan, np.float32)
    np.fmax.at(longest, requests.gap_request, requests.gap_s)
    return longest


def _second(requests: RequestLog) -> Float32:
    second = np.full(len(requests), np.nan, np.float32)
    owners, first = np.unique(requests.gap_request, return_index=True)
    second[owners] = requests.gap_s[first]  # gaps of one request are in order of time
    return second


def tokens_delivered(requests: RequestLog, cutoff_s: float) -> Int64:
    """The number of tokens of each request, [N], delivered by `cutoff_s`.

    Only requests with tokens on both sides of it need their gaps summed. A token without a gap
    counts as coming with the request's last.
    """
    counts = np.zeros(len(requests), np.int64)
    complete = requests.last_s <= cutoff_s
    counts[complete] = requests.output_tokens[complete]
    astride = (requests.first_s <= cutoff_s) & ~complete
    counts[astride] = 1
    if not astride.any():
        return counts

    chosen = np.flatnonzero(astride[requests.gap_request])
    owner = requests.gap_request[chosen]
    by_request = np.argsort(owner, kind="stable")  # gaps of one request stay in time order
    owner = owner[by_request]
    elapsed_s = np.cumsum(requests.gap_s[chosen[by_request]], dtype=np.float64)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    before_s = np.concatenate(([0.0], elapsed_s))[starts]  # gaps of the requests before this one
    elapsed_s -= np.repeat(before_s, np.diff(starts, append=owner.size))
    token_s = requests.first_s[owner] + elapsed_s
    counts += np.bincount(owner[token_s <= cutoff_s], minlength=len(requests))
    return np.minimum(counts, requests.output_tokens)


def means_between(
    sample_s: Sequence[float], values: Sequence[float], edges_s: Sequence[float] | Float64
) -> Float64:
    """Time-weighted means of a sampled value between successive edges: E edges, E - 1 means.

    A sample holds until the next one, the last one for ever; before the first the value is zero.
    NaN between equal edges.
    """
    edges = np.asarray(edges_s, np.float64)
    widths = np.diff(edges)
    if not len(sample_s):
        return np.where(widths > 0, 0.0, np.nan)
    at_s = np.asarray(sample_s, np.float64)
    value = np.asarray(values, np.float64)
    end_s = max(float(edges[-1]), float(at_s[-1]))
    areas = np.concatenate(([0.0], np.cumsum(value * np.diff(at_s, append=end_s))))
    area = np.interp(edges, np.append(at_s, end_s), areas)
    return _quotient(np.diff(area), widths)


def completion_window(requests: RequestLog) -> tuple[float, float] | None:
    """The times at which 10 % and 90 % of the finished requests were complete; None: no time
    between.
    """
    done_s = requests.last_s[requests.outcome == Outcome.FINISHED]
    if not done_s.size:
        return None
    begin_s, end_s = np.percentile(done_s, (10, 90))
    return (float(begin_s), float(end_s)) if end_s > begin_s else None


def _quotient(numerator: Float64, denominator: Float64) -> Float64:
    """`numerator / denominator`, NaN where the denominator is not positive."""
    result = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result

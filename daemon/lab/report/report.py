"""The report: the JSON keys that scripts rely on."""

from typing import Any

import msgspec


class Stats(msgspec.Struct, frozen=True):
    """A measure over the requests that have it; NaN is written as null where none has."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None = None


class Decisions(msgspec.Struct, frozen=True):
    """The time of placement decisions, in microseconds of this machine."""

    count: int
    p50: float
    p99: float


UNKNOWN = Stats(None, None, None, None, None)
"""The statistics of a measure that no request has, or that an older llmd did not take."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator of an instance over the run (Vidur, section 5.2)."""

    calls: int
    mean_size: float  # of its input: tokens, rows, or pairs of tokens for attention
    time_s: float  # in all, as the profile says


class InstanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One instance over the run."""

    name: str
    devices: int
    steps: int
    busy_fraction: float
    mean_step_tokens: float  # forward size
    mean_running: float
    mfu: float | None  # None: the device's peak is unknown
    mean_power_w: float | None
    energy_j: float | None
    role: str = ""  # as it was configured; "": unknown
    transfers: int = 0  # of KV to other instances
    sent_bytes: int = 0  # by them
    transfer_s: float = 0.0  # their total time
    operators: dict[str, OperatorReport] = {}  # by name, with `simulate --operators`


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a run, for pages."""

    quantiles: dict[str, list[float]]  # by measure, at equal steps from the least to the largest
    begin_s: float
    end_s: float
    series: dict[str, list[float]]  # by name, means over equal parts of the time; all instances


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers. Fractions are 0..1."""

    kind: str  # "simulated" | "measured"
    label: str  # workload, arrivals and rate in one line
    policy: str
    profile: str  # or the endpoint's URL
    seed: int
    requests: int
    finished: int
    rejected: int
    failed: int
    dropped: int  # longer than the model's context
    rate_rps: float | None  # asked; None: all at once
    virtual_s: float
    wall_s: float
    throughput_rps: float  # finished / virtual_s
    output_tokens_per_s: float
    ttft_s: Stats
    tpot_s: Stats
    tbt_s: Stats
    jct_s: Stats
    normalized_latency_s: Stats
    queueing_s: Stats
    second_token_s: Stats = UNKNOWN  # after the first
    longest_gap_s: Stats = UNKNOWN
    paused_s: Stats = UNKNOWN
    swap_s: Stats
    transfer_s: Stats
    slo_attainment: (
        float | None
    )  # share of all requests that met every promise; None: none promised
    goodput_rps: float | None
    slo_by_class: dict[str, float]
    preemptions: int | None  # None, as the four below and `iterations`: measured by clients
    preempted_requests_fraction: float | None  # preempted after their first token
    recomputed_tokens: int | None
    loans: int | None = None  # of reserved blocks, until they are needed
    swaps: int | None
    uploaded_ahead_blocks: int | None = None  # of KV, before their sequences had a slot
    kv_allocated_fraction: float | None  # mean over time, from 10 % to 90 % of completions
    kv_written_fraction: float | None
    unserved_tokens_fraction: float  # of the output tokens asked, undelivered at the last arrival
    iterations: int | None
    mean_step_tokens: float | None
    mfu: float | None
    mean_power_w: float | None
    energy_j: float | None
    energy_per_token_j: float | None
    predictor: str  # with its declared error
    instances: list[InstanceReport]
    decision_us: Decisions | None = None  # of placement; None: there was no choice
    handoffs: int | None = None  # sequences that migrated with their KV; None: unknown
    handoffs_failed: int | None = None  # transfers that failed or arrived wrong
    sent_bytes: int | None = None  # of KV, from instance to instance
    capacity_rps: float | None = None  # with --capacity
    capacity: dict[str, Any] | None = None  # how it was found: condition, N, warm-up, rates tried
    attainment: float | None = None  # share of all requests, rejected ones too, that kept TTFT and
    # TPOT as promised; None: neither was
    flips: int | None = None  # changes of instances' roles; None: seen by clients alone
    curves: Curves | msgspec.UnsetType = msgspec.UNSET  # with --out alone, for pages of two runs

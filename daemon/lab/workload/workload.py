"""A workload as columns: one row per request, in order of arrival."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


class WorkloadError(ValueError):
    """A trace or a specification cannot be used; the message says where and why."""


class SloClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Promises for a share of the requests. Zero: not promised."""

    name: str = "all"
    share: float = 1.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    gap_s: float = 0.0  # the longest between two tokens
    normalized_latency_s: float = 0.0
    priority: int = 0
    scale: float = 0.0  # due after the answer's time alone, times this; policies see it


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workload to build, as in scenarios and flags.

    Exactly one of `trace` and `name`, except that `name = "skew"` may take its prompts from a
    trace. `arrivals`: "" keeps the trace's own times (a length-only trace or a named one then needs
    a rate and is Poisson), else poisson, gamma:CV, closed, uniform, burst:SIZE, diurnal:DEPTH.
    """

    trace: Path | None = None
    name: str = ""
    requests: int = 0  # 0: all of the trace (1,000 of a named distribution)
    arrivals: str = ""
    rate: float = 0.0  # requests/s on average
    rate_scale: float = 0.0  # or: the trace's own times, this many times faster
    seed: int = 0
    drift: float = 1.0  # answers grow along the run; factor on the last one's length
    shared_prefix: int = 0  # tokens at the beginning of a prompt, shared by its group
    prefix_groups: int = 1  # of prompts, each with a beginning of its own
    classes: tuple[SloClass, ...] = (SloClass(),)


@dataclass(frozen=True)
class Workload:
    """N requests. Times begin at the run's start and never fall."""

    label: str  # one line for reports: its origin and changes
    arrival_s: Float64  # [N]
    prompt_tokens: npt.NDArray[np.int32]  # [N] >= 1
    output_tokens: npt.NDArray[np.int32]  # [N] >= 1
    slo_class: npt.NDArray[np.uint8]  # [N] index into `classes`
    classes: tuple[SloClass, ...] = (SloClass(),)
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    """[N] or empty: ids of the prompt's leading `prefix_block`-token blocks; equal ids share KV."""
    prefix_block: int = 0  # tokens
    num_dropped: int = 0  # requests longer than `max_len`, left out

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def rate(self) -> float:
        """Requests per second over the arrivals; infinite for a closed workload."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) > 1 else 0.0
        return (len(self) - 1) / span_s if span_s else float("inf")


def asked_rate(spec: WorkloadSpec, workload: Workload) -> float | None:
    """Requests per second that `spec` asks for: its rate, else that of the trace's own times, with
    their scale. None: all at once. The actual rate of random arrivals is `Workload.rate`.
    """
    if spec.arrivals == "closed":
        return None
    return spec.rate or workload.rate

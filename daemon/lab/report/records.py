"""The records of a run: a row for each request, a row for each instance, samples over time."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


class Outcome(IntEnum):
    """The end of a request."""

    UNFINISHED = 0
    FINISHED = 1
    REJECTED = 2
    FAILED = 3


@dataclass(slots=True)
class RequestLog:
    """N requests in order of arrival. Seconds from the run's start; NaN where it never came."""

    arrival_s: Float64  # [N]
    started_s: Float64  # first place in a batch
    first_s: Float64  # first token
    last_s: Float64  # last token so far
    prompt_tokens: Int32
    asked_tokens: Int32  # the answer's true length
    output_tokens: Int32  # delivered
    outcome: UInt8  # Outcome
    slo_class: UInt8
    instance: Int32  # -1: unknown
    preemptions: Int32
    preempted_after_first: npt.NDArray[np.bool_]  # after its first token
    recomputed_tokens: Int32
    loans: Int32  # of blocks that others had reserved
    swap_s: Float32  # time waiting for copies from host memory
    transfer_s: Float32  # time waiting for its KV in a transfer
    paused_s: Float32  # after its first token
    alone_s: Float64  # the whole answer's time on an otherwise idle machine
    gap_s: Float32  # [G] every gap between two tokens of one request
    gap_request: Int32  # [G] the request of each gap

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @classmethod
    def empty(cls, num_requests: int) -> "RequestLog":
        """A log in which nothing has happened yet."""

        def nans() -> Float64:
            return np.full(num_requests, np.nan)

        def zeros() -> Int32:
            return np.zeros(num_requests, np.int32)

        return cls(
            arrival_s=nans(),
            started_s=nans(),
            first_s=nans(),
            last_s=nans(),
            prompt_tokens=zeros(),
            asked_tokens=zeros(),
            output_tokens=zeros(),
            outcome=np.zeros(num_requests, np.uint8),
            slo_class=np.zeros(num_requests, np.uint8),
            instance=np.full(num_requests, -1, np.int32),
            preemptions=zeros(),
            preempted_after_first=np.zeros(num_requests, np.bool_),
            recomputed_tokens=zeros(),
            loans=zeros(),
            swap_s=np.zeros(num_requests, np.float32),
            transfer_s=np.zeros(num_requests, np.float32),
            paused_s=np.full(num_requests, np.nan, np.float32),
            alone_s=nans(),
            gap_s=np.zeros(0, np.float32),
            gap_request=np.zeros(0, np.int32),
        )


@dataclass(slots=True)
class OperatorLog:
    """One operator of an instance over the run."""

    calls: int = 0
    size: int = 0  # of all its inputs
    time_s: float = 0.0


@dataclass(slots=True)
class InstanceLog:
    """One instance over the run. Samples are taken at steps; each holds until the next one."""

    name: str
    num_devices: int = 1
    steps: int = 0
    tokens: int = 0  # computed
    busy_s: float = 0.0
    flops: float = 0.0  # done
    peak_flops: float = 0.0  # a second, of all its devices; 0: unknown
    energy_j: float = 0.0
    capped_s: float = 0.0  # the part of `busy_s` in which the power cap bound
    preemptions: int = 0
    swaps: int = 0
    uploaded_ahead_blocks: int = 0
    role: str = ""  # "": unknown
    transfers: int = 0  # of KV to other instances
    sent_bytes: float = 0.0  # by them
    transfer_s: float = 0.0  # their total time
    operators: dict[str, OperatorLog] = field(default_factory=dict)  # where they are wanted
    sample_s: list[float] = field(default_factory=list)
    sample_allocated: list[float] = field(default_factory=list)  # share of blocks held
    sample_written: list[float] = field(default_factory=list)  # share of token places stored
    sample_running: list[int] = field(default_factory=list)
    sample_waiting: list[int] = field(default_factory=list)
    sample_step_tokens: list[int] = field(default_factory=list)  # forward size
    sample_energy_j: list[float] = field(default_factory=list)  # spent until then; empty: unknown


@dataclass(slots=True)
class Span:
    """A period of work, for the trace viewer."""

    track: str  # instance or link
    name: str
    start_s: float
    duration_s: float
    detail: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(slots=True)
class RunLog:
    """The complete record of a run."""

    requests: RequestLog
    instances: list[InstanceLog]
    spans: list[Span]  # empty unless wanted
    virtual_s: float  # from the first arrival to the last event
    wall_s: float
    handoffs: int = 0  # sequences that migrated with their KV
    handoffs_failed: int = 0  # transfers that failed or arrived wrong
    decision_s: Float64 = field(default_factory=lambda: np.zeros(0))  # of each choice of instance
    flips: int = 0  # changes of instances' roles

    @property
    def uploaded_ahead_blocks(self) -> int:
        """Blocks that came back from host memory before their sequences had a slot."""
        return sum(instance.uploaded_ahead_blocks for instance in self.instances)

    @property
    def swaps(self) -> int:
        """Swap-ins of sequences from host memory."""
        return sum(instance.swaps for instance in self.instances)

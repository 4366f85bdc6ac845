"""What each part of a run of `benchmarks.gpu_bench` is told."""

from dataclasses import dataclass

from benchmarks.gpu.speed.limits import Limits


@dataclass(frozen=True, slots=True)
class Job:
    """What a part is told. `tiny`: sizes for a CPU, whose times mean nothing."""

    device: str
    tiny: bool
    limits: Limits
    budget_s: float  # after which it is ended

"""What to simulate, as types: one frozen struct a section of the TOML file."""

import msgspec

from daemon.config.schema import MemoryConfig, PredictConfig, SchedulerConfig
from daemon.lab.workload.workload import WorkloadSpec

_SCHEDULER, _MEMORY, _PREDICT = SchedulerConfig(), MemoryConfig(), PredictConfig()
"""What is left open is as a daemon has it, or figures of the two would not be of one thing."""


class ScenarioError(ValueError):
    """A scenario that cannot run; the message names the value and what would do."""


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[instance]]`: `count` equal instances."""

    profile: str  # a name such as opt-13b@a100-80g, or a file
    count: int = 1
    kv_bytes: float = 0.0  # of each; 0: from the memory formula
    host_bytes: float = 64e9  # host memory of each to swap KV to; a daemon asks its machine
    power_cap: float = 1.0  # share of the devices' limit
    role: str = "mixed"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: as `[scheduler]` and `[memory]` of the daemon's configuration."""

    max_running: int = _SCHEDULER.max_running
    max_batch_tokens: int = _SCHEDULER.max_batch_tokens  # 0: the policy's own
    prefill_chunk: int = _SCHEDULER.prefill_chunk  # 0: as max_batch_tokens
    max_waiting: int = 0  # 0: no bound, so that what cannot be served shows as waiting
    max_len: int = 0  # 0: the model's context
    block_size: int = _MEMORY.block_size
    prefix_cache: bool = _SCHEDULER.prefix_cache
    depth: int = _SCHEDULER.depth
    swap: str = _MEMORY.swap  # "": the policy's own
    starve_s: float = _SCHEDULER.starve_s
    exact_max_tokens: bool = (
        False  # clients ask for as many tokens as they get, as `llmd bench` does
    )


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[fault]]`: a worker dies; its weights come back over the host link that all share."""

    instance: int
    at_s: float
    restart_s: float = 5.0  # before the weights are loaded


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    workload: WorkloadSpec
    instance: tuple[InstanceGroup, ...]
    policy: str = _SCHEDULER.policy
    predictor: str = _PREDICT.kind
    seed: int = 0  # of the step times' noise and the predictor's error; the workload has its own
    noise: bool = True  # step times vary as the profile measured it
    limits: Limits = Limits()
    fault: tuple[WorkerFault, ...] = ()

    @property
    def num_instances(self) -> int:
        """Instances of all groups."""
        return sum(group.count for group in self.instance)

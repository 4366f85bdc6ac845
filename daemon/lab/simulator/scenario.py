"""The parts of a scenario as types: one frozen struct per section of the TOML file."""

import msgspec

from daemon.config.schema import MemoryConfig, PredictConfig, SchedulerConfig, SloConfig
from daemon.core.values.limits import InstanceLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.state.role import WATCHED, Role
from daemon.state.transfer_mode import HandoffMode

_SCHEDULER, _MEMORY = SchedulerConfig(), MemoryConfig()
"""Open values are a daemon's defaults, so that figures of the two are comparable."""


PAUSE_SHARE = 0.8
"""Share of a promised gap that a pause may take: a step and a migration are added to a pause."""


class ScenarioError(ValueError):
    """The scenario cannot run; the message names the value and valid ones."""


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[instance]]`: `count` equal instances. Limits at 0 or "" are those of the scenario."""

    profile: str  # a name such as opt-13b@a100-80g, or a file
    count: int = 1
    kv_bytes: float = 0.0  # of each; 0: from the memory formula
    host_bytes: float = 64e9  # host memory of each to swap KV to; a daemon asks its machine
    link_bytes_per_s: float = 0.0  # of each one's host link, each way; 0: as the profile has it
    power_cap: float = 1.0  # share of the devices' limit
    role: str = Role.MIXED.value
    policy: str = ""
    max_running: int = 0
    max_batch_tokens: int = 0
    prefill_chunk: int = 0
    depth: int = 0
    swap: str = ""
    decode_admission: str = ""
    device: str = ""  # such as cuda:0,1, which must fit the profile; "": the profile's
    parallel: str = ""  # tpN | ppN: the profile's variant of this name
    asleep: bool = False  # without a worker until the others have no room
    wake_s: float = 0.0  # how long it takes to wake; 0: to load the weights over the host link

    @property
    def profile_name(self) -> str:
        """The name of the profile of its devices."""
        return f"{self.profile}-{self.parallel}" if self.parallel else self.profile


class HandoffSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[handoff]`: how keys and values are transferred between instances."""

    bytes_per_s: float = 0.0  # out of each instance, and into it; 0: as the profiles have it
    latency_s: float | None = None  # None: likewise
    layer_sync_s: float = 20e-6  # additional step time per layer to report it as computed: assumed
    mode: str = HandoffMode.AUTO.value
    pair: str = _SCHEDULER.pair
    mixed_pool: bool = _SCHEDULER.mixed_pool


class ScenarioLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: as `[scheduler]` and `[memory]` of the daemon's configuration."""

    max_running: int = _SCHEDULER.max_running
    max_batch_tokens: int = _SCHEDULER.max_batch_tokens  # 0: the policy's own
    prefill_chunk: int = _SCHEDULER.prefill_chunk  # 0: as max_batch_tokens
    max_waiting: int = 0  # 0: no bound, so that excess load shows as waiting
    max_len: int = 0  # 0: the model's context
    block_size: int = _MEMORY.block_size
    prefix_cache: bool = _SCHEDULER.prefix_cache
    depth: int = _SCHEDULER.depth
    swap: str = _MEMORY.swap  # "": the policy's own
    compress: bool = _MEMORY.compress  # swapped blocks are packed into 8 bits
    decode_admission: str = _SCHEDULER.decode_admission
    starve_s: float = _SCHEDULER.starve_s
    max_pause_s: float | None = None  # None: as `Scenario.max_pause_s` says
    exact_max_tokens: bool = (
        False  # clients ask for as many tokens as they get, as `llmd bench` does
    )


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[fault]]`: a worker dies; its weights are loaded again over the shared host link."""

    instance: int
    at_s: float
    restart_s: float = 5.0  # before the weights are loaded
    blamed: bool = False  # its work may have killed it: sequences it dies of twice fail


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    workload: WorkloadSpec
    instance: tuple[InstanceGroup, ...]
    n: int = 1  # answers of each request
    policy: str = _SCHEDULER.policy
    placement: str = _SCHEDULER.placement
    roles: str = (
        # auto, low_load, idle: by the load; mixed: all are mixed; P:D: counts, P:D:idle: counts at
        # first; "": as in each [[instance]]
        ""
    )
    predictor: str = PredictConfig().kind  # where it reads prompts, its stand-in
    drafts: str = ""  # SHARE:LENGTH of quotes in answers, which prompt lookup drafts; "": none
    seed: int = 0  # of the step times' noise and the predictor's error; the workload has its own
    step_times: str = ""  # of whole "steps", or of "operators" alone; "": whichever errs less
    noise: bool = True  # step times vary as the profile measured it
    limits: ScenarioLimits = ScenarioLimits()
    handoff: HandoffSpec = HandoffSpec()
    fault: tuple[WorkerFault, ...] = ()

    @property
    def role_of_each(self) -> tuple[str, ...]:
        """The configured role of each instance; `roles` has been checked."""
        if self.roles == Role.MIXED.value:
            return (Role.MIXED.value,) * self.num_instances
        if ":" in self.roles:
            num_prefill, num_decode = map(int, self.roles.split(":")[:2])
            return (Role.PREFILL.value,) * num_prefill + (Role.DECODE.value,) * num_decode
        return tuple(group.role for group in self.instance for _ in range(group.count))

    @property
    def watched(self) -> str:
        """The way in which a watcher sets roles: one of WATCHED; "": they stay."""
        mode = self.roles.rpartition(":")[2]
        return mode if mode in WATCHED else ""

    @property
    def num_instances(self) -> int:
        """Instances of all groups."""
        return sum(group.count for group in self.instance)

    @property
    def max_pause_s(self) -> float:
        """Longest pause of a stream that has begun: by the limits, else short enough for the
        shortest gap promised to a class, else the daemon's default.
        """
        if self.limits.max_pause_s is not None:
            return self.limits.max_pause_s
        gaps_s = [slo_class.gap_s for slo_class in self.workload.classes if slo_class.gap_s]
        return PAUSE_SHARE * min(gaps_s) if gaps_s else _SCHEDULER.max_pause_s

    @property
    def slo(self) -> SloConfig:
        """The SLO: the shortest promises to a class, else the daemon's defaults."""
        classes = self.workload.classes
        default = SloConfig()
        return SloConfig(
            min((promise.ttft_s for promise in classes if promise.ttft_s), default=default.ttft_s),
            min((promise.tpot_s for promise in classes if promise.tpot_s), default=default.tpot_s),
        )

    @property
    def shared_limits(self) -> InstanceLimits:
        """The limits of an instance without any of its own, as written."""
        limits = self.limits
        return InstanceLimits(
            policy=self.policy,
            max_running=limits.max_running,
            max_batch_tokens=limits.max_batch_tokens,
            prefill_chunk=limits.prefill_chunk,
            depth=limits.depth,
            swap=limits.swap,
            decode_admission=limits.decode_admission,
        )

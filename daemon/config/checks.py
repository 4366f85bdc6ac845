"""Checks beyond types: ranges, names, and values that must agree with each other."""

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from daemon.base.logs import FORMATS
from daemon.base.nearest import not_one_of
from daemon.config.cluster import LAUNCHERS, cluster_faults
from daemon.config.encoder import MISSING, encoder_folder
from daemon.config.instance_text import (
    device_fault,
    num_ranks,
    num_stages,
    parallel_fault,
    placed,
    role_fault,
)
from daemon.config.instances import OWN_CHOICES, OWN_COUNTS, instance_limits
from daemon.config.keys import key_faults
from daemon.config.schema import Config, InstanceSpec
from daemon.length_models.registry import live_fault, uses_vectors
from daemon.memory.sizing import KV_DTYPES, WEIGHT_KINDS
from daemon.memory.swap_space import SWAP_MODES
from daemon.placement import NAMES, PLACEMENTS
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.policies import POLICIES
from daemon.state.role import ROLES_MODES, TRANSITIONS
from daemon.state.transfer_mode import HANDOFF_MODES, PAIRINGS

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("none", *WEIGHT_KINDS)
KERNELS = ("auto", "torch")
POWER = ("auto", "on", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")


_PATHS = (
    *("model.path", "model.generation_config", "server.host"),
    *("control.socket", "power.socket", "journal.folder", "daemon.cache", "plan.profile"),
)

Fault = tuple[str, str]
"""A dotted key and what is wrong with its value."""

_AT_LEAST: dict[str, float] = {
    "model.max_len": 0,
    "server.port": 0,
    "server.body_limit_bytes": 1024,
    "server.keepalive_s": 0.1,
    "server.max_connections": 1,
    "server.header_timeout_s": 0.1,
    "server.body_timeout_s": 0.1,
    "server.idle_timeout_s": 0.1,
    "server.stall_timeout_s": 0.1,
    "server.max_repeated_tokens": 0,
    "scheduler.max_running": 1,
    "scheduler.max_batch_tokens": 1,
    "scheduler.prefill_chunk": 1,
    "scheduler.max_waiting": 1,
    "scheduler.depth": 0,
    "memory.kv_blocks": 0,
    "memory.kv_bytes": 0,
    "memory.host_bytes": -1,
    "journal.max_bytes": 64 * 1024,
    "predict.store_size": 1,
    "plan.period_s": 20,
    "daemon.drain_s": 0,
    "daemon.threads": 0,
    "daemon.restarts": 0,
}


_CARD = re.compile(r"[A-Za-z0-9-]{1,95}")
"""A card's UUID, as llmd-powerd accepts it."""
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_AT_MOST = {
    "server.port": 65535,
    "model.max_len": _INT32_MAX,
    "scheduler.max_running": _INT32_MAX,
    "scheduler.max_batch_tokens": _INT32_MAX,
    "scheduler.prefill_chunk": _INT32_MAX,
    "memory.kv_blocks": _INT32_MAX,
}
"""Counts are 32 bits wide in columns, and all other integers 64 in messages."""


def check(config: Config) -> Iterator[Fault]:
    """Find every fault of a configuration whose types are right."""
    yield from _ranges(config)
    yield from _paths(config)
    yield from _choices(config)
    yield from key_faults(config.key)
    yield from _experts(config)
    yield from _memory(config)
    yield from _scheduler(config)
    yield from _slo(config)
    yield from _instances(config)
    yield from cluster_faults(config)
    yield from _power(config)
    yield from _predict(config)
    yield from _plan(config)


def _ranges(config: Config) -> Iterator[Fault]:
    for key, least in _AT_LEAST.items():
        value = _value(config, key)
        if not value >= least:  # also true of NaN
            yield key, f"must be at least {least}, got {value}"
        elif value == math.inf:
            yield key, "must be a finite number"
        elif value > _AT_MOST.get(key, _INT64_MAX):
            yield key, f"must be at most {_AT_MOST.get(key, _INT64_MAX)}, got {_short(value)}"


def _short(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"a number of {len(text)} digits"


def _paths(config: Config) -> Iterator[Fault]:
    """Refuse paths and hosts with a zero character, which the system cannot have."""
    for key in _PATHS:
        if "\0" in _value(config, key):
            yield key, "must not hold a zero character"


def _choices(config: Config) -> Iterator[Fault]:
    for key, choices in (
        ("model.dtype", DTYPES),
        ("model.quantize", QUANTIZE),
        ("memory.kv_dtype", KV_DTYPES),
        ("scheduler.policy", tuple(POLICIES)),
        ("scheduler.decode_admission", DECODE_ADMISSIONS),
        ("power.enabled", POWER),
        ("scheduler.roles", ROLES_MODES),
        ("scheduler.handoff", HANDOFF_MODES),
        ("scheduler.pair", PAIRINGS),
        ("engine.kernels", KERNELS),
        ("cluster.launcher", LAUNCHERS),
        ("daemon.log_level", LOG_LEVELS),
        ("daemon.log_format", FORMATS),
    ):
        value = _value(config, key)
        if value not in choices:
            yield key, not_one_of(value, choices)
    if config.scheduler.placement not in NAMES:
        yield "scheduler.placement", not_one_of(config.scheduler.placement, PLACEMENTS)


def _experts(config: Config) -> Iterator[Fault]:
    """Experts in host memory are counted in layers, and an instance of ranks has none there."""
    asked = config.model.experts_on_cpu
    if isinstance(asked, str):
        if asked != "auto":
            yield "model.experts_on_cpu", f'must be "auto" or a number of layers, got {asked!r}'
    elif not 0 <= asked <= _INT32_MAX:
        yield "model.experts_on_cpu", f"must be from 0 to {_INT32_MAX}, got {_short(asked)}"
    split = [placed(spec) for spec in config.instance if num_ranks(spec) > 1]
    if asked and split:
        said = "experts of an instance of ranks lie on its devices alone"
        yield "model.experts_on_cpu", f"must be 0 for {split[0]}: {said}"


def _memory(config: Config) -> Iterator[Fault]:
    memory = config.memory
    size = memory.block_size
    if not 8 <= size <= 256 or size & (size - 1):
        yield "memory.block_size", f"must be a power of two from 8 to 256, got {size}"
    if memory.swap and memory.swap not in SWAP_MODES:
        yield "memory.swap", not_one_of(memory.swap, SWAP_MODES)
    if memory.kv_blocks and memory.kv_bytes:
        yield "memory.kv_blocks", "is given together with memory.kv_bytes: give one of them"
    if memory.compress and memory.kv_dtype != "auto":
        held = f"memory.kv_dtype = {memory.kv_dtype!r} holds them in 8 bits already"
        yield "memory.compress", f"packs blocks into 8 bits, but {held}: give one of them"
    for key in ("memory.utilization", "memory.cpu_fraction"):
        value = _value(config, key)
        if not 0 < value <= 1:
            yield key, f"must be above 0 and at most 1, got {value}"


def _scheduler(config: Config) -> Iterator[Fault]:
    scheduler = config.scheduler
    if not scheduler.starve_s > 0:
        yield "scheduler.starve_s", f"must be above 0, got {scheduler.starve_s}"
    if not 0 < scheduler.max_pause_s < math.inf:
        unbounded = "policies that bound no pause are sarathi, speculative and others"
        yield (
            "scheduler.max_pause_s",
            f"must be a number of seconds above 0, got {scheduler.max_pause_s}; {unbounded}",
        )
    if scheduler.policy in POLICIES and scheduler.prefill_chunk > scheduler.max_batch_tokens:
        most = f"must not exceed scheduler.max_batch_tokens = {scheduler.max_batch_tokens}"
        yield "scheduler.prefill_chunk", f"{most}, got {scheduler.prefill_chunk}"


def _slo(config: Config) -> Iterator[Fault]:
    for name, value in msgspec.structs.asdict(config.slo).items():
        if not 0 < value < math.inf:
            yield f"slo.{name}", f"must be a number of seconds above 0, got {value}"


def _instances(config: Config) -> Iterator[Fault]:
    names = [spec.name for spec in config.instance]
    for number, spec in enumerate(config.instance):
        place = f"instance[{number}]"
        if fault := device_fault(spec.device):
            yield f"{place}.device", fault
        elif fault := parallel_fault(spec.device, spec.parallel):
            yield f"{place}.parallel", fault
        elif fault := _layers_fault(spec):
            yield f"{place}.layers", fault
        if fault := role_fault(spec.role):
            yield f"{place}.role", fault
        if spec.name in names[:number]:
            yield f"{place}.name", f"two instances are named {spec.name!r}"
        if spec.asleep and number == 0:
            yield f"{place}.asleep", "the first instance has to be awake"
        if not 0 <= spec.wake_s < math.inf:
            yield f"{place}.wake_s", f"must be a number from 0 on, got {spec.wake_s}"
        yield from _limits(config, spec, place)


def _layers_fault(spec: InstanceSpec) -> str:
    """Why stages cannot have these layers, whatever the model; empty: they can."""
    if not spec.layers or (len(spec.layers) == num_stages(spec) > 1 and min(spec.layers) > 0):
        return ""
    counts = str([*spec.layers])[:60]
    return f"must be a number from 1 on for each stage of {placed(spec)}, got {counts}"


def _power(config: Config) -> Iterator[Fault]:
    share = config.power.min_share
    if not 0 < share <= 1:
        yield "power.min_share", f"must be above 0 and at most 1, got {share}"
    for number, spec in enumerate(config.instance):
        if spec.card and not _CARD.fullmatch(spec.card):
            yield f"instance[{number}].card", f"must be a card's UUID, got {spec.card[:40]!r}"


def _limits(config: Config, spec: InstanceSpec, place: str) -> Iterator[Fault]:
    """Faults of an instance's own limits."""
    for name in OWN_COUNTS:
        value = getattr(spec, name)
        if not 0 <= value <= _INT32_MAX:
            yield f"{place}.{name}", f"must be from 0 to {_INT32_MAX}, got {_short(value)}"
    for name, choices in OWN_CHOICES.items():
        if getattr(spec, name) not in ("", *choices):
            yield f"{place}.{name}", not_one_of(getattr(spec, name), choices)
    budget = instance_limits(config, spec).max_batch_tokens
    if spec.prefill_chunk > budget:
        most = f"must not exceed the instance's max_batch_tokens = {budget}"
        yield f"{place}.prefill_chunk", f"{most}, got {_short(spec.prefill_chunk)}"


def _predict(config: Config) -> Iterator[Fault]:
    predict = config.predict
    if fault := live_fault(predict.kind):
        yield "predict.kind", fault
    if not 0 < predict.max_age_days < math.inf:
        yield (
            "predict.max_age_days",
            f"must be a number of days above 0, got {predict.max_age_days}",
        )
    if uses_vectors(predict.kind) and encoder_folder() is None:
        yield "predict.kind", f"{predict.kind} {MISSING}"


def _plan(config: Config) -> Iterator[Fault]:
    """A self-driving plan needs a profile, the journal, and roles that no rule changes."""
    if not config.plan.auto:
        return
    if not config.plan.profile:
        yield "plan.profile", "plan.auto needs the profile of an instance: see llmd profile"
    if not config.journal.enabled:
        yield "journal.enabled", "plan.auto reads the journal, so it must be true"
    if config.scheduler.roles in TRANSITIONS:
        yield "scheduler.roles", "plan.auto chooses roles itself: it must be auto or mixed"


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    struct: msgspec.Struct = getattr(config, section)
    return getattr(struct, name)

"""The KV pool of each instance, from the configuration and the model's shape."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from daemon.config.cuda import Devices
from daemon.config.host_pool import HostPlan, plan_host_pool
from daemon.config.instance_text import CPU, devices_of, num_ranks, sums_on_gpus
from daemon.config.instances import worker_limits
from daemon.config.machine import available_ram_bytes
from daemon.config.schema import Config, InstanceSpec
from daemon.core.values.limits import InstanceLimits
from daemon.memory.sizing import (
    NCCL_BYTES,
    Demand,
    PoolSize,
    Room,
    Shape,
    SizingError,
    cpu_copy_bytes,
    gpu_panel_bytes,
    size_pool,
)


class PooledModel(Shape, Protocol):
    """A model's properties that size a pool; daemon.models.shape.ModelShape has them."""

    @property
    def context_len(self) -> int:
        """Tokens of the longest sequence that the model allows."""

    @property
    def dtype(self) -> str:
        """Number format of the weights as stored."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights that stay in blocks."""

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights once loaded: blocks as they are, all others as `dtype`."""

    def plain_bytes(self, dtype: str) -> int:
        """Bytes of the weights that are not packed, as `dtype`."""

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts that host memory could hold."""

    def on_device(self, experts_on_cpu: int) -> "PooledModel":
        """The share of a device where host memory has as many experts as so many layers have."""


class PoolPlan(msgspec.Struct, frozen=True):
    """One instance's pools, and all that they were computed from."""

    dtype: str  # of states
    weight_dtype: str  # of weights that are not packed
    demand: Demand
    room: Room | None  # None: a GPU whose memory cannot be read from here
    size: PoolSize | None  # None with room: the worker sizes the pool when it starts
    host: HostPlan  # to which its blocks are swapped
    experts_on_cpu: int = 0  # layers of whose experts as many lie in host memory
    ram_weight_bytes: int = 0  # of these experts
    ranks: tuple["PoolPlan", ...] = ()  # of each rank, where their devices differ

    def of_rank(self, rank: int) -> "PoolPlan":
        """The pools of one rank."""
        return self.ranks[rank] if self.ranks else self

    @property
    def num_blocks(self) -> int:
        """Blocks of the device's pool; 0: the worker finds out."""
        return self.size.num_blocks if self.size else 0


def instance_dtype(config: Config, device: str, stored: str) -> str:
    """The number format of an instance's states. A CPU's are always float32: narrow numbers save
    it only the reading of weights.
    """
    return "float32" if device == CPU else weight_dtype(config, stored)


def weight_dtype(config: Config, stored: str) -> str:
    """The number format in which an instance holds weights that are not packed."""
    return stored if config.model.dtype == "auto" else config.model.dtype


def longest(config: Config, context_len: int) -> int:
    """Tokens of the longest sequence, before the pool's size limits it."""
    return min(config.model.max_len or context_len, context_len)


def plan_pools(
    config: Config,
    parts: Sequence[tuple[str, PooledModel]],
    spec: InstanceSpec,
    devices: Devices,
) -> PoolPlan:
    """The pools of an instance, of whose ranks each has a part of a model on a device: that of the
    rank with the fewest blocks, as which all have as many. `parts` that are alike are planned once.

    Raises SizingError as `plan_pool` does.
    """
    different = dict.fromkeys(parts)
    if len(different) == 1:
        ((device, model),) = different
        return plan_pool(config, model, spec, devices, device)
    plans = [plan_pool(config, model, spec, devices, device) for device, model in parts]
    known = [plan for plan in plans if plan.size is not None]
    least = min(known, key=lambda plan: plan.num_blocks, default=plans[0])
    num_places = min(plan.host.num_blocks for plan in plans)
    ranks = tuple(_with_blocks(plan, least.num_blocks, num_places) for plan in plans)
    return replace(ranks[plans.index(least)], ranks=ranks)


def _with_blocks(plan: PoolPlan, num_blocks: int, num_places: int) -> PoolPlan:
    """A plan with so many blocks, where their number is known, and places in the host pool."""
    size = plan.size and replace(plan.size, num_blocks=num_blocks)
    return replace(plan, size=size, host=replace(plan.host, num_blocks=num_places))


def plan_pool(
    config: Config,
    model: PooledModel,
    spec: InstanceSpec,
    devices: Devices,
    device: str = "",
) -> PoolPlan:
    """The pools of one instance of `config` on one of `devices` or the CPU, or of one of its ranks,
    which has a share of the model on `device` (empty: that of all). Raises SizingError for a pool
    too small to be useful.
    """
    refuse_too_long(config, model)
    device = device or spec.device
    dtype = instance_dtype(config, device, model.dtype)
    on_cpu = experts_on_cpu(config, model, spec, devices, device)
    above = model.on_device(on_cpu)
    below_bytes = _below_bytes(config, model, above)
    demand, room, size = _device_pool(config, above, spec, device, dtype, devices, below_bytes)
    host = plan_host_pool(config, model, spec, device, dtype, size, below_bytes)
    return PoolPlan(
        dtype=dtype,
        weight_dtype=weight_dtype(config, model.dtype),
        demand=demand,
        room=room,
        size=size,
        host=host,
        experts_on_cpu=on_cpu,
        ram_weight_bytes=below_bytes,
    )


def _below_bytes(config: Config, model: PooledModel, above: PooledModel) -> int:
    """Bytes of the experts that host memory holds, `above` being the device's share of a model."""
    held_as = weight_dtype(config, model.dtype)
    return model.weight_bytes(held_as) - above.weight_bytes(held_as)


def refuse_experts(config: Config, model: PooledModel) -> None:
    """Raise SizingError where model.experts_on_cpu asks for what the model does not have."""
    asked, there = config.model.experts_on_cpu, model.num_expert_layers
    if not asked:
        return
    if not there:
        raise SizingError(
            f"model.experts_on_cpu = {asked!r} is for a mixture whose experts have matrices of "
            "their own, which this model's weights are not (model.quantize makes such of a mixture)"
        )
    if isinstance(asked, int) and asked > there:
        raise SizingError(
            f"model.experts_on_cpu = {asked} is more than this model's {there} layers with experts"
        )


def experts_on_cpu(
    config: Config, model: PooledModel, spec: InstanceSpec, devices: Devices, device: str
) -> int:
    """Layers of whose experts as many lie in host memory: as configured, or as few as leave room
    for the longest sequence beside the others. On a CPU all lies there. Raises SizingError.
    """
    refuse_experts(config, model)
    asked = config.model.experts_on_cpu
    if isinstance(asked, int):
        return asked
    if device == CPU:
        return 0
    dtype = instance_dtype(config, device, model.dtype)
    for on_cpu in range(model.num_expert_layers):
        try:
            size = _device_pool(config, model.on_device(on_cpu), spec, device, dtype, devices)[2]
        except SizingError:
            continue
        if size is None or size.max_len >= longest(config, model.context_len):
            return on_cpu
    return model.num_expert_layers


def pool_faults(
    config: Config, model: PooledModel, spec: InstanceSpec, devices: Devices, device: str = ""
) -> Iterator[str]:
    """Every fault that `plan_pool` would raise if it went on after the first."""
    device = device or spec.device
    dtype = instance_dtype(config, device, model.dtype)
    size: list[PoolSize | None] = [None]
    below_bytes = 0

    def plan_device() -> None:
        nonlocal below_bytes
        above = model.on_device(experts_on_cpu(config, model, spec, devices, device))
        below_bytes = _below_bytes(config, model, above)
        size[0] = _device_pool(config, above, spec, device, dtype, devices, below_bytes)[2]

    for plan in (
        lambda: refuse_too_long(config, model),
        plan_device,
        lambda: plan_host_pool(config, model, spec, device, dtype, size[0], below_bytes),
    ):
        try:
            plan()
        except SizingError as error:
            yield str(error)


def _device_pool(
    config: Config,
    model: PooledModel,
    spec: InstanceSpec,
    device: str,
    dtype: str,
    devices: Devices,
    below_bytes: int = 0,
) -> tuple[Demand, Room | None, PoolSize | None]:
    """The demand on the device's own pool, the memory for it, and its size. `below_bytes`: of
    experts in host memory.
    """
    demand = demand_of(config, model, dtype, worker_limits(config, spec))
    kv_bytes = demand.kv_bytes // num_ranks(spec)  # said of the whole instance
    demand = replace(demand, kv_bytes=kv_bytes)
    held_as = weight_dtype(config, model.dtype)
    weight_bytes = model.weight_bytes(held_as)
    panel_bytes = 0
    if device == CPU:
        weight_bytes += cpu_copy_bytes(model.plain_bytes(held_as), held_as) + below_bytes
    else:
        panel_bytes = gpu_panel_bytes(model.packed_bytes)
    room = _room(config, device, weight_bytes, panel_bytes, devices)
    if room is not None:
        room = replace(room, nccl_bytes=NCCL_BYTES if sums_on_gpus(spec) else 0)
        size = size_pool(model, demand, room)
        refuse_beyond(room, size)
        return demand, room, size
    if not demand.kv_blocks and not demand.kv_bytes:
        return demand, None, None
    unknown = Room(weight_bytes=0, total_bytes=0, free_bytes=0, is_cpu=False)
    return demand, None, size_pool(model, demand, unknown)


def demand_of(config: Config, model: PooledModel, dtype: str, limits: InstanceLimits) -> Demand:
    """The demand on the pool of an instance with these limits that computes in `dtype`."""
    return Demand(
        dtype=dtype,
        kv_dtype=config.memory.kv_dtype,
        block_size=config.memory.block_size,
        max_running=limits.max_running,
        max_len=longest(config, model.context_len),
        max_batch_tokens=limits.max_batch_tokens,
        required_len=longest(config, model.context_len) if config.model.max_len else 0,
        kv_blocks=config.memory.kv_blocks,
        kv_bytes=config.memory.kv_bytes,
    )


def refuse_too_long(config: Config, model: PooledModel) -> None:
    """Raise SizingError for a model.max_len beyond the model's context: to serve less than was
    configured would surprise clients.
    """
    if config.model.max_len > model.context_len:
        raise SizingError(
            f"model.max_len = {config.model.max_len} is beyond the model's context of "
            f"{model.context_len} tokens: lower it, or 0 for all of the context"
        )


def refuse_beyond(room: Room, size: PoolSize) -> None:
    """Raise SizingError for a pool of a configured size that does not fit beside the weights."""
    pool_bytes = size.num_blocks * size.block_bytes
    left_bytes = max(room.free_bytes - room.weight_bytes, 0)
    if size.reason in ("kv_blocks", "kv_bytes") and pool_bytes > left_bytes:
        where = "RAM is available" if room.is_cpu else "GPU memory is free"
        raise SizingError(
            f"memory.{size.reason} asks for {size.num_blocks:,} blocks of {size.block_bytes} "
            f"bytes, {gib(pool_bytes)} in all, but beside the weights {gib(left_bytes)} of "
            f"{where} for this instance: lower it, or leave it out"
        )


def gib(size_bytes: int) -> str:
    """Bytes in GiB, for people."""
    return f"{size_bytes / 2**30:,.2f} GiB"


def _room(
    config: Config, device: str, weight_bytes: int, panel_bytes: int, devices: Devices
) -> Room | None:
    """The device's memory; instances and ranks on one device share it evenly."""
    sharing = max(sum(devices_of(it).count(device) for it in config.instance), 1)
    if device == CPU:
        total, free = 0, available_ram_bytes()
    else:
        number = int(device.partition(":")[2])
        if number >= len(devices.cards):
            return None
        card = devices.cards[number]
        if card.free_bytes is None:
            return None
        total, free = card.total_bytes, card.free_bytes
    return Room(
        weight_bytes=weight_bytes,
        panel_bytes=panel_bytes,
        total_bytes=total // sharing,
        free_bytes=free // sharing,
        is_cpu=device == CPU,
        utilization=config.memory.utilization,
        cpu_fraction=config.memory.cpu_fraction,
    )

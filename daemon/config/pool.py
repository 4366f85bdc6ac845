"""From a configuration and a model's shape to the KV pool of each instance."""

from typing import Protocol

import msgspec

from daemon.config.host_pool import HostPlan, plan_host_pool
from daemon.config.machine import available_ram_bytes, gpu_memory_bytes
from daemon.config.schema import Config, InstanceSpec
from daemon.memory.sizing import Demand, PoolSize, Room, Shape, cpu_weight_bytes, size_pool


class Model(Shape, Protocol):
    """What pools need of a model; daemon.models.shape.ModelShape has it."""

    @property
    def context_len(self) -> int:
        """Tokens of the longest sequence that the model allows."""

    @property
    def dtype(self) -> str:
        """Number format of the weights as stored."""

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights once loaded as `dtype`."""


class PoolPlan(msgspec.Struct, frozen=True):
    """One instance's pools, and all that they were computed from."""

    dtype: str
    demand: Demand
    room: Room | None  # None: a GPU whose memory cannot be read from here
    size: PoolSize | None  # None with room: the worker sizes the pool when it starts
    host: HostPlan  # what its blocks are swapped to


def instance_dtype(config: Config, device: str, stored: str) -> str:
    """The number format an instance computes in."""
    if config.model.dtype != "auto":
        return config.model.dtype
    return "float32" if device == "cpu" else stored


def longest(config: Config, context_len: int) -> int:
    """Tokens of the longest sequence, before the pool has its say."""
    return min(config.model.max_len or context_len, context_len)


def plan_pool(config: Config, model: Model, spec: InstanceSpec) -> PoolPlan:
    """The pools of one instance. Raises SizingError where one would be of no use."""
    dtype = instance_dtype(config, spec.device, model.dtype)
    demand = Demand(
        dtype=dtype,
        kv_dtype=config.memory.kv_dtype,
        block_size=config.memory.block_size,
        max_running=config.scheduler.max_running,
        max_len=longest(config, model.context_len),
        max_batch_tokens=config.scheduler.max_batch_tokens,
        required_len=longest(config, model.context_len) if config.model.max_len else 0,
        kv_blocks=config.memory.kv_blocks,
        kv_bytes=config.memory.kv_bytes,
    )
    weight_bytes = model.weight_bytes(dtype)
    if spec.device == "cpu":
        weight_bytes = cpu_weight_bytes(weight_bytes, dtype)
    room = _room(config, spec.device, weight_bytes)
    size = None
    if room is not None or demand.kv_blocks or demand.kv_bytes:
        known = room or Room(weight_bytes=0, total_bytes=0, free_bytes=0, is_cpu=False)
        size = size_pool(model, demand, known)
    host = plan_host_pool(config, model, spec.device, dtype, size)
    return PoolPlan(dtype, demand, room, size, host)


def _room(config: Config, device: str, weight_bytes: int) -> Room | None:
    """The device's memory; instances on one device share it evenly."""
    sharing = max(sum(spec.device == device for spec in config.instance), 1)
    if device == "cpu":
        total, free = 0, available_ram_bytes()
    else:
        memory = gpu_memory_bytes(int(device.partition(":")[2]))
        if memory is None:
            return None
        total, free = memory
    return Room(
        weight_bytes=weight_bytes,
        total_bytes=total // sharing,
        free_bytes=free // sharing,
        is_cpu=device == "cpu",
        utilization=config.memory.utilization,
        cpu_fraction=config.memory.cpu_fraction,
    )

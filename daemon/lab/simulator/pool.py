"""The KV pools of a simulated instance: the daemon's own formula over a profile's devices."""

from dataclasses import dataclass, replace

from daemon.core.limits import InstanceLimits
from daemon.cost.profile import Profile
from daemon.lab.simulator.scenario import InstanceGroup, ScenarioError
from daemon.memory.sizing import (
    GPU_RUNTIME_BYTES,
    Demand,
    PoolSize,
    Room,
    SizingError,
    gpu_panel_bytes,
    size_pool,
)

MOST_HOST_POOLS = 32
"""Largest host pool, in device pools: a larger one would never fill."""


@dataclass(slots=True, frozen=True)
class Pool:
    """A ready worker's report of its memory."""

    num_blocks: int
    block_bytes: int
    num_host_blocks: int = 0
    copy_block_s: float = 0.0


def pools_of(
    profile: Profile, group: InstanceGroup, block_size: int, limits: InstanceLimits
) -> Pool:
    """Device and host pool of one instance; no host pool where the link's bandwidth is unknown."""
    budget = limits.max_batch_tokens
    size = pool_of(profile, group.kv_bytes, block_size, limits.max_running, budget)
    most = MOST_HOST_POOLS * size.num_blocks
    num_host_blocks = min(int(group.host_bytes) // size.block_bytes, most)
    return over_link(profile, Pool(size.num_blocks, size.block_bytes, num_host_blocks))


def over_link(profile: Profile, pool: Pool) -> Pool:
    """The pool on a profile's devices, with the time to copy a block if there is a link."""
    link = profile.device.host_link
    if not link.bytes_per_s:
        return Pool(pool.num_blocks, pool.block_bytes)
    copy_block_s = pool.block_bytes / (link.bytes_per_s * profile.num_devices)
    return replace(pool, copy_block_s=copy_block_s)


def pool_of(
    profile: Profile, kv_bytes: float, block_size: int, max_running: int, max_batch_tokens: int
) -> PoolSize:
    """Blocks over all devices of one instance: each device has a shard of each block."""
    model, count = profile.model, profile.num_devices
    total_bytes = profile.device.memory_bytes * count
    demand = Demand(
        dtype=model.dtype,
        kv_dtype=model.kv_dtype,
        block_size=block_size,
        max_running=max_running,
        max_len=model.context_len,
        max_batch_tokens=max_batch_tokens,
        kv_bytes=int(kv_bytes),
    )
    room = Room(
        weight_bytes=model.weight_bytes(model.dtype),
        total_bytes=total_bytes,
        free_bytes=total_bytes - (count - 1) * GPU_RUNTIME_BYTES,
        is_cpu=profile.device.is_cpu,
        panel_bytes=0 if profile.device.is_cpu else count * gpu_panel_bytes(model.packed_bytes),
    )
    try:
        return size_pool(model, demand, room)
    except SizingError as error:
        raise ScenarioError(f"{profile.name}: {error}") from None

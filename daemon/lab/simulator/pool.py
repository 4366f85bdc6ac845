"""The KV pools of a simulated instance: the daemon's own formula over a profile's devices."""

from dataclasses import dataclass, replace

from daemon.core.values.limits import InstanceLimits
from daemon.cost.profile import Profile
from daemon.lab.simulator.scenario import InstanceGroup, ScenarioError
from daemon.memory.sizing import (
    GPU_RUNTIME_BYTES,
    Demand,
    PoolSize,
    Room,
    SizingError,
    gpu_panel_bytes,
    model_layout,
    packed_block_bytes,
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
    packed_bytes: int = 0  # of a block in host memory; 0: not packed
    windows: tuple[int, ...] = ()  # of groups of layers, as a worker reports them
    kinds: tuple[str, ...] = ()  # of the same
    state_pages: int = 0  # of a sequence's states

    @property
    def host_block_bytes(self) -> int:
        """Bytes of a block in host memory, and on the link to it."""
        return self.packed_bytes or self.block_bytes


def pools_of(
    profile: Profile,
    group: InstanceGroup,
    block_size: int,
    limits: InstanceLimits,
    compress: bool = False,
) -> Pool:
    """Device and host pool of one instance; no host pool where the link's bandwidth is unknown.
    With `compress`, blocks in host memory are packed into 8 bits, on the device and in no time.
    """
    budget = limits.max_batch_tokens
    size = pool_of(profile, group.kv_bytes, block_size, limits.max_running, budget)
    most = MOST_HOST_POOLS * size.num_blocks
    if compress and profile.model.kv_dtype != "auto":
        held = f"{profile.name} holds {profile.model.kv_dtype} anyway"
        raise ScenarioError(f"limits.compress packs blocks into 8 bits, but {held}")
    packed = packed_block_bytes(profile.model, block_size) if compress else 0
    num_host_blocks = min(int(group.host_bytes) // (packed or size.block_bytes), most)
    pool = Pool(size.num_blocks, size.block_bytes, num_host_blocks, packed_bytes=packed)
    return over_link(profile, _in_pages(profile, pool, block_size))


def _in_pages(profile: Profile, pool: Pool, block_size: int) -> Pool:
    """The pool in pages of groups of layers, as a worker has it where some have windows."""
    model = profile.model
    layout = model_layout(model, model.windows, block_size, model.dtype, model.kv_dtype)
    if layout.is_plain:
        return pool
    times = pool.block_bytes / layout.page_bytes
    return replace(
        pool,
        num_blocks=int(pool.num_blocks * times),
        num_host_blocks=int(pool.num_host_blocks * times),
        block_bytes=layout.page_bytes,
        packed_bytes=int(pool.packed_bytes / times),
        windows=layout.windows,
        kinds=layout.kinds,
        state_pages=layout.state_pages,
    )


def over_link(profile: Profile, pool: Pool) -> Pool:
    """The pool on a profile's devices, with the time to copy a block if there is a link."""
    link = profile.device.host_link
    if not link.bytes_per_s:
        return replace(pool, num_host_blocks=0, copy_block_s=0.0, packed_bytes=0)
    copy_block_s = pool.host_block_bytes / (link.bytes_per_s * profile.num_devices)
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

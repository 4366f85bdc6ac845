"""The KV pool of a simulated instance: the daemon's own formula over a profile's devices."""

from daemon.cost.profile import Profile
from daemon.memory.sizing import GPU_RUNTIME_BYTES, Demand, PoolSize, Room, SizingError, size_pool
from daemon.simulator.scenario import ScenarioError


def pool_of(
    profile: Profile, kv_bytes: float, block_size: int, max_running: int, max_batch_tokens: int
) -> PoolSize:
    """Blocks over all devices of one instance together: shards of a block lie on each of them."""
    model, count = profile.model, profile.num_devices
    total_bytes = profile.device.memory_bytes * count
    demand = Demand(
        dtype=model.dtype,
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
        is_cpu=profile.device.name.startswith("cpu"),
    )
    try:
        return size_pool(model, demand, room)
    except SizingError as error:
        raise ScenarioError(f"{profile.name}: {error}") from None

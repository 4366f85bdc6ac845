"""The host pool of each instance, to which KV blocks are swapped, from the configuration.

block         = as the device's; with memory.compress one byte an element, and for each channel of a
                layer's keys and values a scale and a zero of two bytes
host_bytes -1 = four times the device's own pool, but at most this instance's part of a share of
                available RAM: 25 % beside a GPU, where the pool is pinned, 10 % beside a CPU,
                whose own pool lies in the same RAM. With many preemptions, a host pool as small as
                the device's is soon full, and running sequences can no longer be preempted

The policy may change while the daemon runs, the pool may not: so there is one unless memory.swap
rules it out, or memory.host_bytes is 0.
"""

import msgspec

from daemon.config.instance_text import num_ranks
from daemon.config.instances import instance_limits
from daemon.config.machine import available_ram_bytes
from daemon.config.schema import Config, InstanceSpec
from daemon.memory.sizing import PoolSize, Shape, SizingError, block_bytes, packed_block_bytes
from daemon.memory.swap_space import SWAPPING

DEVICE_POOLS = 4
RAM_SHARE = {"cuda": 0.25, "cpu": 0.1}


class HostPlan(msgspec.Struct, frozen=True):
    """One instance's host pool, and the rule that sized it."""

    num_blocks: int
    block_bytes: int
    reason: str  # "swap", "host_bytes", "kv", "ram"


def plan_host_pool(
    config: Config,
    model: Shape,
    spec: InstanceSpec,
    device: str,
    dtype: str,
    pool: PoolSize | None,
    below_bytes: int = 0,
) -> HostPlan:
    """The host pool beside `pool` (None: not known yet) of one rank, on `device`. Raises
    SizingError if it holds nothing. `below_bytes`: of experts that host memory holds beside it.
    """
    memory, num_instances = config.memory, max(len(config.instance), 1)
    _refuse_experts(below_bytes, num_instances)
    ranks = num_ranks(spec)
    per_block = block_bytes(model, memory.block_size, dtype, memory.kv_dtype)
    if memory.compress:
        per_block = packed_block_bytes(model, memory.block_size)
    swap = instance_limits(config, spec).swap
    if swap and swap not in SWAPPING:
        return HostPlan(0, per_block, "swap")
    if memory.host_bytes >= 0:
        if 0 < memory.host_bytes < ranks * per_block:
            raise SizingError(
                f"memory.host_bytes = {memory.host_bytes} does not hold one block of {per_block} "
                "bytes: give it more, or 0 for no host pool"
            )
        _refuse_beyond_ram(memory.host_bytes, num_instances, below_bytes)
        return HostPlan(memory.host_bytes // ranks // per_block, per_block, "host_bytes")
    share = RAM_SHARE[device.partition(":")[0]]
    ram_bytes = int(share * max(available_ram_bytes() - num_instances * below_bytes, 0))
    ram_bytes = ram_bytes // num_instances // ranks
    useful_bytes = DEVICE_POOLS * pool.num_blocks * pool.block_bytes if pool is not None else 0
    if pool is None or useful_bytes > ram_bytes:
        return HostPlan(ram_bytes // per_block, per_block, "ram")
    return HostPlan(useful_bytes // per_block, per_block, "kv")


def _refuse_experts(below_bytes: int, num_instances: int) -> None:
    available_bytes = available_ram_bytes()
    if below_bytes * num_instances > available_bytes:
        raise SizingError(
            f"the experts in host memory take {below_bytes * num_instances} bytes, more than the "
            f"{available_bytes} bytes of RAM that are available: lower model.experts_on_cpu"
        )


def _refuse_beyond_ram(host_bytes: int, num_instances: int, below_bytes: int) -> None:
    available_bytes = available_ram_bytes() - num_instances * below_bytes
    if host_bytes * num_instances > available_bytes:
        each = f" for each of {num_instances} instances" if num_instances > 1 else ""
        beside = " beside experts" if below_bytes else ""
        raise SizingError(
            f"memory.host_bytes = {host_bytes}{each} is more than the {available_bytes} bytes of "
            f"RAM that are available{beside}: lower it, or -1 for a share of RAM"
        )

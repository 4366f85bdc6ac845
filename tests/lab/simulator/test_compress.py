"""KV that is packed into 8 bits in host memory: its bytes on the link, its room, and the waits."""

import msgspec
import pytest

from daemon.config.host_pool import plan_host_pool
from daemon.config.schema import Config, InstanceSpec, MemoryConfig
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.run import Options, Prepared, pools_for, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioError, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from tests.lab.simulator.made import MODEL
from tests.lab.simulator.test_uploads import crowded, lawful, waits_s


def loaded(compress: bool, policy: str = "mlfq", bytes_per_s: float = 1e5) -> Prepared:
    """A crowd over blocks of 16 tokens, which are packed in host memory or not."""
    made = crowded(policy, bytes_per_s)
    limits = msgspec.structs.replace(made.scenario.limits, block_size=16, compress=compress)
    scenario = msgspec.structs.replace(made.scenario, limits=limits)
    return Prepared(scenario, made.profiles, made.groups, made.max_len, made.workload)


def pool_of_one(made: Prepared) -> Pool:
    (pool,) = pools_for(made.scenario, made.profiles, made.groups)
    return pool


def test_a_packed_block_is_as_large_as_the_daemons_own() -> None:
    pool = pool_of_one(loaded(True))
    memory = MemoryConfig(block_size=16, compress=True, host_bytes=10_000_000)
    spec = InstanceSpec(device="cpu")
    daemons = plan_host_pool(Config(memory=memory), MODEL, spec, spec.device, MODEL.dtype, None)
    assert pool.host_block_bytes == daemons.block_bytes


def test_copies_take_less_in_the_ratio_of_bytes() -> None:
    plain, packed = pool_of_one(loaded(False)), pool_of_one(loaded(True))
    assert packed.host_block_bytes < plain.host_block_bytes == plain.block_bytes
    ratio = packed.host_block_bytes / plain.host_block_bytes
    assert packed.copy_block_s == pytest.approx(ratio * plain.copy_block_s)
    assert packed.num_blocks == plain.num_blocks


@pytest.mark.parametrize("policy", ["mlfq", "speculative"])
def test_returns_wait_less_for_packed_blocks(policy: str) -> None:
    plain = run(loaded(False, policy), Options())
    packed = run(loaded(True, policy), Options(after_event=lawful))
    assert plain.swaps and packed.swaps
    assert waits_s(packed) < waits_s(plain)


def test_a_cache_of_eight_bits_is_not_packed_once_more() -> None:
    scenario = Scenario(
        workload=WorkloadSpec(requests=2),
        instance=(InstanceGroup(profile="opt-13b@a100-80g-kv8"),),
        limits=ScenarioLimits(compress=True),
    )
    with pytest.raises(ScenarioError, match=r"limits\.compress packs blocks into 8 bits, but"):
        prepare(scenario)

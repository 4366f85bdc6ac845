"""Host pools from a configuration: as large as is useful, and no larger than RAM allows."""

from typing import Any

import pytest

from daemon.config import host_pool
from daemon.config.host_pool import HostPlan, plan_host_pool
from daemon.config.load import ConfigError, load
from daemon.config.schema import InstanceSpec
from daemon.memory.sizing import PoolSize, SizingError
from tests.shapes import LLAMA_3_8B

BLOCK_BYTES = 32 * 2 * 16 * 8 * 128 * 2
GIB = 1 << 30


@pytest.fixture(autouse=True)
def ram_of_64_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "available_ram_bytes", lambda: 64 * GIB)


def plan(num_blocks: int | None, device: str = "cuda:0", **overrides: Any) -> HostPlan:
    keys = {"memory.swap": "proactive"}
    keys |= {key.replace("__", "."): value for key, value in overrides.items()}
    size = None
    if num_blocks is not None:
        size = PoolSize(num_blocks, BLOCK_BYTES, 0, 0, 8192, "memory")
    return plan_host_pool(
        load(None, keys).config, LLAMA_3_8B, InstanceSpec(device), device, "bfloat16", size
    )


def test_four_times_the_device_s_pool() -> None:
    assert plan(1000) == HostPlan(4000, BLOCK_BYTES, "kv")
    assert plan(1000, memory__swap="reactive") == HostPlan(4000, BLOCK_BYTES, "kv")


@pytest.mark.parametrize(("device", "share"), [("cuda:3", 0.25), ("cpu", 0.1)])
@pytest.mark.parametrize("num_blocks", [100_000, None])
def test_at_most_a_share_of_ram(device: str, share: float, num_blocks: int | None) -> None:
    blocks = int(share * 64 * GIB) // BLOCK_BYTES
    assert plan(num_blocks, device) == HostPlan(blocks, BLOCK_BYTES, "ram")


def test_instances_share_the_ram() -> None:
    both = [{"device": "cuda:0"}, {"device": "cuda:1"}]
    assert plan(100_000, instance=both).num_blocks == 8 * GIB // BLOCK_BYTES


def test_a_given_size_is_taken() -> None:
    assert plan(1, memory__host_bytes=40 * GIB).num_blocks == 40 * GIB // BLOCK_BYTES
    assert plan(1, memory__host_bytes=40 * GIB).reason == "host_bytes"
    assert plan(1000, memory__host_bytes=0) == HostPlan(0, BLOCK_BYTES, "host_bytes")
    assert plan(1000, memory__host_bytes=BLOCK_BYTES).num_blocks == 1
    with pytest.raises(SizingError, match=f"does not hold one block of {BLOCK_BYTES} bytes"):
        plan(1000, memory__host_bytes=BLOCK_BYTES - 1)


def test_compressed_blocks_are_smaller_so_that_there_are_more() -> None:
    packed = 32 * 2 * 8 * 128 * (16 + 4)
    assert plan(1000, memory__compress=True) == HostPlan(4000 * BLOCK_BYTES // packed, packed, "kv")


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("policy", ["sarathi", "mlfq"])
def test_left_to_the_policy_there_is_one_since_the_policy_may_change(
    device: str, policy: str
) -> None:
    free: dict[str, Any] = {"memory__swap": "", "scheduler__policy": policy}
    assert plan(500, device, **free).num_blocks == 2000
    assert plan(1000, device, **free, memory__host_bytes=4 * BLOCK_BYTES).num_blocks == 4
    assert plan(1000, device, **free, memory__host_bytes=0).num_blocks == 0


@pytest.mark.parametrize("mode", ["recompute", "defer"])
def test_without_swapping_there_is_none(mode: str) -> None:
    assert plan(1000, memory__swap=mode, memory__host_bytes=GIB).num_blocks == 0


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("memory.swap", "eager", "must be one of proactive, reactive, recompute, defer, dynamic"),
        ("memory.host_bytes", -2, "must be at least -1"),
        (
            "scheduler.decode_admission",
            "",
            "must be one of greedy, reserve_static, reserve_dynamic",
        ),
        ("scheduler.starve_s", 0.0, "must be above 0, got 0.0"),
        ("scheduler.starve_s", float("nan"), "must be above 0, got nan"),
        *(
            ("scheduler.max_pause_s", pause_s, f"must be a number of seconds above 0, got {got}")
            for pause_s, got in (
                (0.0, "0.0"),
                (-1.0, "-1.0"),
                (float("inf"), "inf"),
                (float("nan"), "nan"),
            )
        ),
    ],
)
def test_faults_are_named(key: str, value: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: {fault}"):
        load(None, {key: value})

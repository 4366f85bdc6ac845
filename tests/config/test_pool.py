"""Pools from a configuration: dtype, lengths, and instances that share a device."""

from typing import Any

import msgspec
import pytest

from daemon.config import host_pool, pool
from daemon.config.cuda import Card, Devices
from daemon.config.find import needs_of
from daemon.config.load import ConfigError, load
from daemon.memory.experts import ExpertShape
from daemon.memory.sizing import SizingError
from tests.shapes import LLAMA_3_8B

GIB = 1 << 30
GPU_OF_80_GIB = Devices((Card("NVIDIA", "", (9, 0), 80 * GIB, 80 * GIB),))
CPU = ({"device": "cpu"},)


@pytest.fixture
def ram_of_64_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pool, host_pool):
        monkeypatch.setattr(module, "available_ram_bytes", lambda: 64 * GIB)


def plans(found: Devices = GPU_OF_80_GIB, **overrides: Any) -> list[pool.PoolPlan]:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    config = load(None, {"instance": CPU, **keys}).config
    return [pool.plan_pool(config, LLAMA_3_8B, spec, found) for spec in config.instance]


def devices(*names: str) -> list[dict[str, str]]:
    return [{"device": name} for name in names]


@pytest.mark.usefixtures("ram_of_64_gib")
def test_a_cpu_computes_in_float32_with_weights_as_they_are() -> None:
    cpu, gpu = plans(instance=devices("cpu", "cuda:0"), memory__kv_blocks=8)
    assert (cpu.dtype, gpu.dtype) == ("float32", "bfloat16")
    assert (cpu.weight_dtype, gpu.weight_dtype) == ("bfloat16", "bfloat16")
    (asked,) = plans(memory__kv_blocks=8, model__dtype="float16")
    assert (asked.dtype, asked.weight_dtype) == ("float32", "float16")


def test_a_gpu_holds_quantised_weights_as_they_are_and_what_it_unpacks_of_them() -> None:
    packed = msgspec.structs.replace(
        LLAMA_3_8B, packed_params=7_000_000_000, packed_bytes=4_000_000_000
    )
    config = load(None, {"instance": devices("cuda:0")}).config
    plan = pool.plan_pool(config, packed, config.instance[0], GPU_OF_80_GIB)
    assert plan.room is not None
    assert plan.room.weight_bytes == 4_000_000_000 + 2 * 1_000_000_000
    assert plan.room.panel_bytes == 128 << 20
    needs = needs_of(config, packed)
    assert needs.weight_bytes == plan.room.weight_bytes
    assert needs.work_bytes - needs_of(config, LLAMA_3_8B).work_bytes == 128 << 20
    (plain,) = plans(instance=devices("cuda:0"))
    assert plain.room is not None and plain.room.panel_bytes == 0


def test_instances_on_one_device_share_its_memory() -> None:
    (alone,) = plans(instance=devices("cuda:0"))
    first, second = plans(instance=devices("cuda:0", "cuda:0"))
    assert alone.room is not None and first.room is not None and second.room is not None
    assert alone.room.total_bytes == 80 * GIB
    assert first.room.total_bytes == second.room.total_bytes == 40 * GIB


def test_an_asked_length_is_required_and_may_not_be_beyond_the_context() -> None:
    (plan,) = plans(instance=devices("cuda:0"), model__max_len=8192)
    assert plan.size is not None
    assert (plan.demand.required_len, plan.size.max_len) == (8192, 8192)
    (plan,) = plans(instance=devices("cuda:0"), model__max_len=1000)
    assert plan.size is not None
    assert plan.size.max_len == 1000
    with pytest.raises(SizingError, match=r"model.max_len = 8193 is beyond .* of 8192 tokens"):
        plans(instance=devices("cuda:0"), model__max_len=8193)


@pytest.mark.parametrize(
    ("asked", "key"),
    [({"kv_blocks": 100_000_000}, "kv_blocks"), ({"kv_bytes": 60 * GIB}, "kv_bytes")],
)
@pytest.mark.usefixtures("ram_of_64_gib")
def test_a_pool_that_was_asked_for_must_fit_beside_the_weights(
    asked: dict[str, int], key: str
) -> None:
    memory = {f"memory__{name}": value for name, value in asked.items()}
    with pytest.raises(SizingError, match=rf"memory.{key} asks for .* of RAM is available"):
        plans(**memory)
    (fits,) = plans(instance=devices("cuda:0"), memory__kv_bytes=64 * GIB)
    assert fits.size is not None and fits.size.num_blocks == 32 * 1024
    with pytest.raises(SizingError, match=r"but beside the weights 25.10 GiB of GPU memory"):
        plans(instance=devices("cuda:0", "cuda:0"), memory__kv_bytes=32 * GIB)


def test_blocks_that_were_asked_for_need_no_gpu_to_be_read() -> None:
    dark = Devices((Card("NVIDIA", "", (9, 0), 80 * GIB, None),))
    (unknown,) = plans(dark, instance=devices("cuda:0"))
    assert unknown.size is None
    (asked,) = plans(dark, instance=devices("cuda:0"), memory__kv_blocks=64)
    assert asked.room is None and asked.size is not None
    assert (asked.size.num_blocks, asked.size.max_len) == (64, 1024)


EXPERTS = ExpertShape(
    num_layers=32,
    count=8,
    chosen=2,
    num_params=6_000_000_000,
    packed_params=0,
    packed_bytes=0,
)
MIXTURE = msgspec.structs.replace(LLAMA_3_8B, experts=EXPERTS)


def plan_of(found: Devices, model: Any = MIXTURE, **overrides: Any) -> pool.PoolPlan:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    config = load(None, {"instance": devices("cuda:0"), **keys}).config
    return pool.plan_pool(config, model, config.instance[0], found)


@pytest.mark.usefixtures("ram_of_64_gib")
def test_experts_in_host_memory_leave_room_on_the_device_and_take_it_there() -> None:
    whole, half = (plan_of(GPU_OF_80_GIB, model__experts_on_cpu=layers) for layers in (0, 16))
    assert whole.room is not None and half.room is not None
    assert whole.experts_on_cpu == whole.ram_weight_bytes == 0
    assert half.experts_on_cpu == 16 and half.ram_weight_bytes == 6_000_000_000
    assert whole.room.weight_bytes - half.room.weight_bytes == 6_000_000_000
    assert half.host.num_blocks < whole.host.num_blocks


@pytest.mark.usefixtures("ram_of_64_gib")
def test_auto_leaves_as_many_experts_on_the_device_as_fit_beside_the_longest_sequence() -> None:
    card = Devices((Card("NVIDIA", "", (9, 0), 16 * GIB, 16 * GIB),))
    found = plan_of(card, model__experts_on_cpu="auto")
    assert found.size is not None and found.size.max_len == LLAMA_3_8B.context_len
    assert 0 < found.experts_on_cpu < EXPERTS.num_layers
    fewer = plan_of(card, model__experts_on_cpu=found.experts_on_cpu - 1)
    assert fewer.size is not None and fewer.size.max_len < LLAMA_3_8B.context_len
    assert plan_of(GPU_OF_80_GIB, model__experts_on_cpu="auto").experts_on_cpu == 0


@pytest.mark.usefixtures("ram_of_64_gib")
def test_experts_that_are_not_there_or_find_no_room_are_refused() -> None:
    with pytest.raises(SizingError, match="is for a mixture whose experts have matrices"):
        plan_of(GPU_OF_80_GIB, LLAMA_3_8B, model__experts_on_cpu=1)
    with pytest.raises(SizingError, match="33 is more than this model's 32 layers with experts"):
        plan_of(GPU_OF_80_GIB, model__experts_on_cpu=33)
    large = msgspec.structs.replace(EXPERTS, num_params=60_000_000_000)
    model = msgspec.structs.replace(MIXTURE, num_params=62_000_000_000, experts=large)
    with pytest.raises(SizingError, match=r"lower model\.experts_on_cpu"):
        plan_of(GPU_OF_80_GIB, model, model__experts_on_cpu=32)
    beside = {"model__experts_on_cpu": 16, "memory__host_bytes": 60 * GIB}
    with pytest.raises(SizingError, match="of RAM that are available beside experts"):
        plan_of(GPU_OF_80_GIB, **beside)
    config = load(None, {"instance": devices("cuda:0"), "model.experts_on_cpu": 32}).config
    (fault,) = pool.pool_faults(config, model, config.instance[0], GPU_OF_80_GIB)
    assert "lower model.experts_on_cpu" in fault


@pytest.mark.parametrize(
    ("asked", "device", "fault"),
    [
        (1, "cpu:tp2", "must be 0 for cpu:tp2: experts of an instance of ranks lie on its devices"),
        ("all", "cpu", 'must be "auto" or a number of layers, got .all.'),
        (-1, "cpu", "must be from 0 to"),
    ],
)
def test_a_wrong_number_of_experts_is_named(asked: object, device: str, fault: str) -> None:
    name, _, how = device.partition(":")
    spec = {"device": name, "parallel": how} if how else {"device": name}
    with pytest.raises(ConfigError, match=f"model.experts_on_cpu: {fault}"):
        load(None, {"instance": (spec,), "model.experts_on_cpu": asked})

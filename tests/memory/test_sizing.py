"""The memory formula, against sums done by hand."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.sizing import (
    CPU_RUNTIME_BYTES,
    GPU_RUNTIME_BYTES,
    Demand,
    Room,
    SizingError,
    activation_bytes,
    block_bytes,
    gpu_panel_bytes,
    size_pool,
)
from tests.shapes import LLAMA_3_8B

GIB = 1 << 30
GEMMA_3_27B: Any = SimpleNamespace(
    num_layers=62,
    num_heads=32,
    num_kv_heads=16,
    head_dim=128,
    hidden_size=5376,
    vocab_size=262208,
    windows=tuple(0 if layer % 6 == 5 else 1024 for layer in range(62)),
    layer_heads=(),
    layer_states=(),
    beside=(),
)
DEMAND = Demand(
    dtype="bfloat16", block_size=16, max_running=128, max_len=8192, max_batch_tokens=512
)
GPU = Room(weight_bytes=16 * GIB, total_bytes=80 * GIB, free_bytes=79 * GIB, is_cpu=False)
CPU = Room(weight_bytes=16 * GIB, total_bytes=0, free_bytes=100 * GIB, is_cpu=True)


def demand(**changes: Any) -> Demand:
    return msgspec.structs.replace(DEMAND, **changes)


def test_a_block_of_llama_3_8b_is_two_mebibytes() -> None:
    assert block_bytes(LLAMA_3_8B, 16, "bfloat16") == 2 << 20


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_8_bits_take_a_byte_and_a_scale_for_each_head(kv_dtype: str) -> None:
    assert block_bytes(LLAMA_3_8B, 16, "bfloat16", kv_dtype) == (1 << 20) + 32 * 2 * 16 * 8 * 4
    pool = size_pool(LLAMA_3_8B, demand(kv_dtype=kv_dtype, kv_bytes=1 << 30), GPU)
    assert (pool.num_blocks, pool.block_bytes) == (992, 1_081_344)


def test_activations_by_hand() -> None:
    per_token = (16 * 4096 + 2 * (32 + 16) * 128) * 2
    assert activation_bytes(LLAMA_3_8B, DEMAND) == 512 * per_token + 128 * 128256 * 12


def test_a_gpu_gives_what_utilization_leaves() -> None:
    pool = size_pool(LLAMA_3_8B, DEMAND, GPU)
    activation = activation_bytes(LLAMA_3_8B, DEMAND)
    room = int(0.9 * 80 * GIB) - 1 * GIB - 16 * GIB - activation - GPU_RUNTIME_BYTES
    assert (pool.kv_bytes, pool.num_blocks, pool.reason) == (room, room // (2 << 20), "memory")
    assert pool.max_len == 8192


def test_a_gpu_keeps_room_for_numbers_that_it_unpacks() -> None:
    assert (gpu_panel_bytes(0), gpu_panel_bytes(1)) == (0, 128 << 20)
    packed = msgspec.structs.replace(GPU, panel_bytes=gpu_panel_bytes(4 * GIB))
    taken = (
        size_pool(LLAMA_3_8B, DEMAND, GPU).kv_bytes - size_pool(LLAMA_3_8B, DEMAND, packed).kv_bytes
    )
    assert taken == 128 << 20


def test_a_cpu_gives_its_fraction_and_never_what_the_weights_need() -> None:
    pool = size_pool(LLAMA_3_8B, DEMAND, CPU)
    assert (pool.kv_bytes, pool.num_blocks) == (25 * GIB, 25 * GIB // (2 << 20))
    tight = msgspec.structs.replace(CPU, free_bytes=17 * GIB)
    rest = 1 * GIB - activation_bytes(LLAMA_3_8B, DEMAND) - CPU_RUNTIME_BYTES
    assert size_pool(LLAMA_3_8B, DEMAND, tight).kv_bytes == rest > 0


def test_the_pool_never_exceeds_what_all_sequences_need() -> None:
    pool = size_pool(LLAMA_3_8B, demand(max_running=2, max_len=1000), GPU)
    assert (pool.num_blocks, pool.reason) == (2 * 63, "max_running")


def test_overrides_win() -> None:
    assert size_pool(LLAMA_3_8B, demand(kv_blocks=12), GPU).num_blocks == 12
    assert size_pool(LLAMA_3_8B, demand(kv_bytes=25 << 20), GPU).num_blocks == 12


def test_a_small_pool_shortens_the_longest_sequence() -> None:
    assert size_pool(LLAMA_3_8B, demand(kv_blocks=12), GPU).max_len == 192


def test_a_pool_of_windows_holds_a_longer_sequence_and_is_not_larger_than_all_need() -> None:
    wanted = demand(max_len=131072, kv_bytes=20 * GIB, required_len=65536, max_running=1)
    pool = size_pool(GEMMA_3_27B, wanted, GPU)
    # 80 KiB a token of full layers, and 416 KiB of each of the last 1,024 and of a chunk.
    assert pool.max_len == 131072 > 20 * GIB // pool.block_bytes * 16 > 40000
    whole = size_pool(GEMMA_3_27B, demand(max_len=131072, max_running=2), GPU)
    assert whole.reason == "max_running"
    needed = 2 * (131072 * 80 + 1024 * 416) << 10
    assert abs(whole.num_blocks * whole.block_bytes - needed) <= 0.05 * needed


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        ({"kv_blocks": 1}, GPU),
        ({"kv_bytes": 1}, GPU),
        ({"kv_blocks": 12, "required_len": 193}, GPU),
        ({}, msgspec.structs.replace(GPU, free_bytes=20 * GIB)),
        ({}, msgspec.structs.replace(CPU, free_bytes=16 * GIB)),
    ],
)
def test_a_useless_pool_is_refused_with_advice(changes: dict[str, Any], room: Room) -> None:
    with pytest.raises(SizingError, match=r"blocks .* give it more memory"):
        size_pool(LLAMA_3_8B, demand(**changes), room)


@given(
    free=st.integers(0, 1 << 40),
    weights=st.integers(0, 1 << 38),
    fraction=st.floats(0.01, 1.0),
    running=st.integers(1, 512),
    length=st.integers(1, 1 << 17),
)
def test_a_cpu_pool_always_fits(
    free: int, weights: int, fraction: float, running: int, length: int
) -> None:
    room = Room(
        weight_bytes=weights, total_bytes=0, free_bytes=free, is_cpu=True, cpu_fraction=fraction
    )
    wanted = demand(max_running=running, max_len=length)
    try:
        pool = size_pool(LLAMA_3_8B, wanted, room)
    except SizingError:
        return
    used = pool.num_blocks * pool.block_bytes
    assert used <= fraction * free + 1
    assert used + weights + pool.activation_bytes + CPU_RUNTIME_BYTES <= free
    assert pool.num_blocks * 16 >= pool.max_len

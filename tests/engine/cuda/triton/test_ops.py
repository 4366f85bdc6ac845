"""The small fused kernels: what they mean, what is compiled for a GPU, what they refuse.

That they compute what they mean, `test_interpreter` shows.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton

from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.ops import TritonOps
from daemon.engine.cuda.triton import reference
from daemon.engine.layers.ops import Heads, Norm, Ops
from tests.gpu.compiled.launches import Launches, compiled_for
from tests.gpu.compiled.op_compile_checks import op_compile_checks
from tests.gpu.poison import apart, error, untouched

BF16 = torch.bfloat16


@pytest.fixture
def chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_reference_of_rows_is_torch(chance: torch.Generator) -> None:
    states, added = torch.randn(2, 5, 48, generator=chance)
    weight, others = torch.randn(48, generator=chance), states.clone()
    for summand in (added, None):
        right = Ops().norm(others, summand, Norm(weight, 1e-5))
        torch.testing.assert_close(reference.add_norm(states, summand, weight, 1e-5), right)
        assert torch.equal(states, others)
    torch.testing.assert_close(reference.silu_mul(states), Ops().silu_mul(states))
    torch.testing.assert_close(reference.gelu_mul(states), Ops().gelu_mul(states))


@pytest.mark.parametrize("rotary_dim", [16, 6])
@pytest.mark.parametrize("normed", [False, True])
def test_reference_of_place_is_torch_step_by_step(
    chance: torch.Generator, rotary_dim: int, normed: bool
) -> None:
    """Queries and keys as `Ops` hands them to attention, keys where the slots say."""
    norms = [Norm(torch.randn(16, generator=chance), 1e-5) if normed else None for _ in range(2)]
    heads = Heads(4, 2, 16, 0.5, *norms)
    projected = torch.randn(3, 8, 16, generator=chance)
    angles = torch.randn(3, rotary_dim // 2, generator=chance).repeat(1, 2)
    handed: list[torch.Tensor] = []

    def paged(_layer: int, *states: Any) -> torch.Tensor:
        handed.extend(states[:3])
        return states[0]

    copy = projected.clone().flatten(1)
    Ops().attend(paged, 0, copy, heads, (angles.cos(), angles.sin()))
    cache = torch.zeros(3, 2, 2, 4, 2, 16)
    blocks, offsets = torch.tensor([2, -1, 0]).int(), torch.tensor([3, 1, 0]).int()
    slots = (cache, None, 1, blocks, offsets)
    reference.place(projected, angles.cos(), angles.sin(), *slots, heads)
    query, key, value = handed
    torch.testing.assert_close(projected[:, :4], query)
    for token, block, offset in ((0, 2, 3), (2, 0, 0)):
        torch.testing.assert_close(cache[block, 1, 0, offset], key[token])
        torch.testing.assert_close(cache[block, 1, 1, offset], value[token])
        cache[block, 1, :, offset] = 0.0
    assert not cache.any()


def test_compiled_once_for_any_number_of_tokens() -> None:
    sizes = ((32, 8, 128, 128, False),)
    checks = list(op_compile_checks((90,), (BF16,), ((4096, 14_336),), sizes))
    assert len(checks) == 10  # norm, silu_mul, and place for three types of cache
    assert not [check.line() for check in checks if not check.ok]


def test_another_stride_does_compile_anew() -> None:
    """What the check above looks for can be seen."""
    with compiled_for(90) as launches:
        kernels.silu_mul(torch.empty(4, 256, dtype=BF16, device="meta"))
        kernels.silu_mul(torch.empty(4, 512, dtype=BF16, device="meta")[:, :256])
    first, second = launches.take()
    assert first.hash != second.hash


@pytest.fixture
def hopper() -> Iterator[Launches]:
    with compiled_for(90) as launches:
        yield launches


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def narrow(compiled: Any) -> set[str]:
    """The instructions that touch global memory with less than 16 bytes a thread."""
    words = {word for word in compiled.asm["ptx"].split() if word.startswith(("ld.g", "st.g"))}
    assert words
    return {word for word in words if ".v4.b32" not in word}


def launch_all(launches: Launches) -> list[Any]:
    """The three kernels as Llama 3 8B's sizes have them, heads normed as well."""
    kernels.add_norm(meta(7, 4096), meta(7, 4096), meta(4096), 1e-5)
    kernels.silu_mul(meta(7, 2 * 14_336))
    slots = meta(7, dtype=torch.int32), meta(7, dtype=torch.int32)
    angles = meta(7, 128, dtype=torch.float32)
    cache = (meta(5, 2, 2, 16, 8, 128), None, 1, *slots)
    norm = Norm(meta(128), 1e-6)
    kernels.place(meta(7, 48, 128), angles, angles, *cache, Heads(32, 8, 128, 1.0, norm, norm))
    return launches.take()


def test_memory_is_read_in_pieces_of_16_bytes(hopper: Launches) -> None:
    rows, gates, placed = launch_all(hopper)
    assert not narrow(rows) and not narrow(gates)
    assert narrow(placed) == {"ld.global.b32"}  # a token's block and offset
    assert placed.metadata.shared == 0  # nothing is passed from thread to thread


def test_who_comes_early_waits_before_all_else(hopper: Launches) -> None:
    """Launched while the kernel before still runs, from Hopper on; and lets the next one do so."""
    for compiled in launch_all(hopper):
        code = compiled.asm["ptx"]
        touched = min(code.index("ld.global"), code.index("st.global"))
        assert compiled.metadata.launch_pdl
        assert code.index("griddepcontrol.launch_dependents") < code.index("griddepcontrol.wait")
        assert code.index("griddepcontrol.wait") < touched


def test_nobody_comes_early_before_hopper() -> None:
    with compiled_for(89) as launches:
        for compiled in launch_all(launches):
            assert not compiled.metadata.launch_pdl
            assert "griddepcontrol" not in compiled.asm["ptx"]


def test_rows_that_a_kernel_cannot_read_are_refused() -> None:
    whole, weight = torch.zeros(4, 64), torch.zeros(64)
    with pytest.raises(ValueError, match="lie together"):
        kernels.add_norm(whole.T, None, weight[:4], 1e-5)
    with pytest.raises(ValueError, match="lie together"):
        kernels.silu_mul(whole.T)
    with pytest.raises(ValueError, match="wider than"):
        kernels.add_norm(torch.zeros(1, 16_385), None, torch.zeros(16_385), 1e-5)
    angles, heads = torch.zeros(2, 8), Heads(2, 1, 8, 1.0)
    slots = torch.zeros(2, dtype=torch.int32)
    cache = torch.zeros(3, 1, 2, 4, 2, 8)
    place = (cache, None, 0, slots, slots, heads)
    with pytest.raises(ValueError, match="lie together"):
        kernels.place(torch.zeros(8, 4, 2).transpose(0, 2), angles, angles, *place)
    place = (cache.transpose(3, 4), None, 0, slots, slots, heads)
    with pytest.raises(ValueError, match="block of the cache"):
        kernels.place(torch.zeros(2, 4, 8), angles, angles, *place)


def test_attention_that_does_not_say_where_keys_go_is_refused() -> None:
    def paged(*_states: Any) -> torch.Tensor:
        raise AssertionError("keys would not have been written")

    angles = torch.zeros(2, 8), torch.zeros(2, 8)
    with pytest.raises(TypeError, match="where keys and values go"):
        TritonOps().attend(paged, 0, torch.zeros(2, 32), Heads(2, 1, 8, 1.0), angles)


def test_no_tokens_launch_nothing() -> None:
    """There is no GPU to launch on; and Triton refuses an empty grid."""
    empty, slots = torch.zeros(0, 64), torch.zeros(0, dtype=torch.int32)
    assert kernels.add_norm(empty, empty, torch.zeros(64), 1e-5).shape == (0, 64)
    assert kernels.silu_mul(empty).shape == (0, 32)
    angles, cache = torch.zeros(0, 8), torch.zeros(3, 1, 2, 4, 1, 8)
    place = (cache, None, 0, slots, slots, Heads(2, 1, 8, 1.0))
    kernels.place(torch.zeros(0, 4, 8), angles, angles, *place)


def test_traps_and_errors_of_the_checks_show() -> None:
    """What the checks of these kernels lean on."""
    rows = apart(torch.ones(2, 3))
    assert untouched(rows) and error(rows, torch.ones(2, 3)) == 0
    rows.as_strided((1,), (1,), 3).fill_(0.0)
    assert not untouched(rows)
    assert error(torch.tensor([1.5, 8.0]), torch.tensor([1.0, 8.0])) == 0.5
    assert not error(torch.tensor([torch.nan]), torch.tensor([1.0])) <= 1
    assert triton.knobs.runtime.interpret is False

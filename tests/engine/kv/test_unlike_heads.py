"""One pool for layers of unlike heads, against a pool of its own for each layer."""

from dataclasses import replace

import pytest
import torch

from daemon.engine.kv.eight_bit import KV_DTYPES
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import AttentionVariant, GroupedAttention
from daemon.engine.layers.ops import Heads, Norm, Ops
from daemon.engine.model.backend import Attend, choose_backend, torch_backend
from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.layout import layout_of as blocks_of
from daemon.memory.layout import KVHeads, KVLayout, layout_of
from daemon.memory.sizing import SCALE_BYTES
from tests.engine.interpreting import Interpreting
from tests.engine.model.test_backends import batch_of
from tests.soak import SOAK

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_HEADS = 8, 12
NUM_BLOCKS = 6  # of a group
PADDED = (KVHeads(1, 32), KVHeads(3, 16), KVHeads(3, 16), KVHeads(3, 16, 1))
IN_PARTS = (KVHeads(4, 16), KVHeads(4, 16), KVHeads(1, 32), KVHeads(4, 16))
SHARED = (KVHeads(2, 16), KVHeads(1, 32), KVHeads(2, 16, 0), KVHeads(1, 32, 1))
STEPS = (([0, 0, 0], [7, 9, 3]), ([7, 9, 3], [1, 4, 1]), ([8, 13, 4], [1, 1, 1]))


def layout(layers: tuple[KVHeads, ...], kv_dtype: torch.dtype | None = None) -> KVLayout:
    def head_bytes(head_dim: int) -> int:
        return 4 * head_dim if kv_dtype is None else head_dim + SCALE_BYTES

    return layout_of([0] * len(layers), layers, head_bytes, BLOCK_SIZE)


def compare(attend: Attend, layers: tuple[KVHeads, ...], kv_dtype: torch.dtype | None) -> None:
    """Steps of all layers through one pool, and each layer's through its own, by torch."""
    torch.manual_seed(1)
    held = layout(layers, kv_dtype)
    num_groups = len(held.groups)
    pool = PagedKV.of_layout(num_groups * NUM_BLOCKS, held, torch.float32, CPU, kv_dtype)
    assert pool.block_bytes == held.page_bytes
    sizes = [(NUM_BLOCKS, 1, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim) for heads in layers]
    own = [PagedKV(*size, torch.float32, CPU, kv_dtype) for size in sizes]
    for starts, counts in STEPS:
        batch = batch_of(starts, counts, BLOCK_SIZE)
        shifts = [NUM_BLOCKS * group for group in range(num_groups)]
        batches = [
            replace(batch, blocks=batch.blocks + by, block_tables=batch.block_tables + by)
            for by in shifts
        ]
        groups = [attend(*pair) for pair in zip(batches, pool.views, strict=True)]
        grouped = GroupedAttention(groups, pool.places, held.shared)
        known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for layer, heads in enumerate(layers):
            shape = len(batch.tokens), heads.num_kv_heads, heads.head_dim
            known[layer] = known.get(heads.source) or (torch.randn(shape), torch.randn(shape))
            query = torch.randn(len(batch.tokens), NUM_HEADS, heads.head_dim)
            rule = AttentionVariant(window=5 if layer % 2 else 0, sinks=torch.randn(NUM_HEADS))
            plain = torch_backend().attend(batch, own[layer])
            expected = plain(0, query, *known[layer], 0.3, rule)
            found = grouped(layer, query, *known[layer], 0.3, rule)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def compare_projected(ops: Ops, attend: Attend, layers: tuple[KVHeads, ...]) -> None:
    """The same from merged projections, with norms of heads, against torch step by step."""
    chance = torch.Generator().manual_seed(2)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    held = layout(layers)
    pools = [
        PagedKV.of_layout(len(held.groups) * NUM_BLOCKS, held, torch.float32, CPU) for _ in range(2)
    ]
    for starts, counts in STEPS:
        batch = batch_of(starts, counts, BLOCK_SIZE)
        batches = [
            replace(
                batch,
                blocks=batch.blocks + NUM_BLOCKS * group,
                block_tables=batch.block_tables + NUM_BLOCKS * group,
            )
            for group in range(len(held.groups))
        ]
        ways = zip((attend, torch_backend().attend), pools, strict=True)
        grouped = [
            GroupedAttention(list(map(way, batches, pool.views)), pool.places, held.shared)
            for way, pool in ways
        ]
        for layer, own in enumerate(layers):
            dim, count = own.head_dim, len(batch.tokens)
            norms = [Norm(drawn(dim), 1e-5) for _ in range(3)]
            heads = Heads(NUM_HEADS, own.num_kv_heads, dim, 0.3, *norms)
            projected = drawn(count, NUM_HEADS + 2 * own.num_kv_heads, dim)
            turns = drawn(count, dim // 2).repeat(1, 2)
            angles = turns.cos(), turns.sin()
            copies = [projected.clone().flatten(1) for _ in range(2)]
            found = ops.attend(grouped[0], layer, copies[0], heads, angles)
            expected = Ops().attend(grouped[1], layer, copies[1], heads, angles)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pools[0].raw.view(torch.float32), pools[1].raw.view(torch.float32))


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
@pytest.mark.parametrize("layers", [PADDED, IN_PARTS, SHARED])
@pytest.mark.parametrize("name", ["torch", "compiled"])
def test_each_layer_attends_as_in_a_pool_of_its_own(
    name: str, layers: tuple[KVHeads, ...], kv_dtype: str
) -> None:
    backend = torch_backend() if name == "torch" else choose_backend(CPU, torch.float32)
    compare(backend.attend, layers, KV_DTYPES[kv_dtype])


_PROGRAM = """
import sys

from daemon.engine.cuda.attention import CudaAttention
from daemon.engine.cuda.ops import TritonOps
from tests.engine.kv import test_unlike_heads as cases

cases.compare(CudaAttention.of, cases.PADDED, None)
cases.compare_projected(TritonOps(), CudaAttention.of, cases.PADDED[:3])
if sys.argv[1:] == ["all"]:
    for layers in (cases.IN_PARTS, cases.SHARED):
        cases.compare(CudaAttention.of, layers, None)
    cases.compare_projected(TritonOps(), CudaAttention.of, cases.IN_PARTS)
    cases.compare(CudaAttention.of, cases.PADDED, cases.KV_DTYPES["int8"])
print("equal")
"""


def test_kernels_of_a_gpu_do_too(interpreting: Interpreting) -> None:
    assert interpreting.output(_PROGRAM, *["all"] * SOAK) == "equal"


def test_what_a_block_has() -> None:
    pool = PagedKV.of_layout(4, layout(IN_PARTS), torch.float32, CPU)
    assert not pool.is_uniform and not pool.is_direct
    assert [len(pool.places[layer]) for layer in range(4)] == [2, 2, 1, 2]
    shared = PagedKV.of_layout(4, layout(SHARED), torch.float32, CPU)
    assert shared.places[2] == shared.places[0] and shared.places[3] == shared.places[1]
    twin = shared.twin(9, torch.bfloat16)
    assert (twin.num_blocks, twin.places) == (9, shared.places)
    assert twin.block_bytes == shared.block_bytes // 2


def test_pools_whose_layers_lie_otherwise_do_not_exchange_blocks() -> None:
    first, second = (
        PagedKV.of_layout(4, layout(layers), torch.float32, CPU)
        for layers in (SHARED, (KVHeads(2, 16), KVHeads(2, 16)))
    )
    assert first.block_bytes == second.block_bytes // 2
    with pytest.raises(TransferError, match="groups"):
        blocks_of(first).check(blocks_of(second))

"""The oracle itself, against torch's own attention over plain, contiguous keys and values."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from daemon.engine.cuda.triton import reference
from tests.gpu.kernel_shapes import SMALL
from tests.gpu.paged import LAYER, Shape, paged

FLOATS = [shape for shape in SMALL if shape.dtype == torch.float32]


@pytest.mark.parametrize("shape", FLOATS, ids=str)
def test_reference_is_dense_causal_attention(shape: Shape) -> None:
    case = paged(shape, "cpu", 5)
    got = reference.paged_prefill_attention(
        case.query,
        case.kv_cache,
        LAYER,
        case.block_tables,
        case.starts,
        case.counts,
        case.row_offsets,
        shape.scale,
    )
    group = shape.heads // shape.kv_heads
    for row, (start, count) in enumerate(zip(shape.starts, shape.counts, strict=True)):
        blocks = [int(block) for block in case.block_tables[row]]
        cells = torch.cat([case.kv_cache[block, LAYER] for block in blocks], 1)
        keys, values = cells[:, : start + count].repeat_interleave(group, 2).transpose(1, 2)
        first = sum(shape.counts[:row])
        query = case.query[first : first + count].transpose(0, 1)
        seen = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        dense = scaled_dot_product_attention(query, keys, values, seen, scale=shape.scale)
        torch.testing.assert_close(got[first : first + count], dense.transpose(0, 1))


@pytest.mark.parametrize("shape", FLOATS, ids=str)
def test_decode_is_prefill_of_the_last_token(shape: Shape) -> None:
    case = paged(shape, "cpu", 6, spare_tokens=3)
    rows = len(shape.lengths)
    query = case.query[:rows]
    decoded = reference.paged_decode_attention(
        query, case.kv_cache, LAYER, case.block_tables, case.lengths, shape.scale
    )
    ones = torch.ones(rows, dtype=torch.int32)
    alone = reference.paged_prefill_attention(
        query,
        case.kv_cache,
        LAYER,
        case.block_tables,
        case.lengths - 1,
        ones,
        torch.arange(rows + 1),
        shape.scale,
    )
    assert torch.equal(decoded, alone)


def test_cache_writes_say_where() -> None:
    cache = torch.zeros(3, 2, 2, 4, 1, 2)
    pairs = torch.arange(1.0, 7.0).view(3, 1, 2)
    blocks, offsets = torch.tensor([2, -1, 0]), torch.tensor([3, 0, 1])
    reference.write_kv(pairs, -pairs, cache, 1, blocks, offsets)
    assert cache[2, 1, 0, 3].tolist() == [[1.0, 2.0]]
    assert cache[0, 1, 1, 1].tolist() == [[-5.0, -6.0]]
    assert int((cache != 0).sum()) == 8

"""Decode attention over many parts of one context, which the last program joins; its tiles."""

import pytest
import torch

from daemon.engine.cuda.triton.decode import num_splits
from daemon.engine.cuda.triton.tiles import prefill_tiling
from tests.engine.interpreting import Interpreting

PROGRAM = """
import torch
from tests.gpu.kernel_checks import LIMITS, distance
from tests.gpu.paged import LAYER, Shape, paged
from daemon.engine.cuda.triton import decode, reference

# Parts are joined four at a time here: 8 heads of 256 numbers.
for kv_dtype, lengths in ((None, (409, 65)), (torch.int8, (260, 0))):
    shape = Shape(8, 1, 256, 16, torch.float32, lengths, (1, 1), kv_dtype)
    case = paged(shape, "cpu")
    arguments = (case.query, case.kv_cache, LAYER, case.block_tables, case.lengths, 0.1)
    wide = case.block_tables.new_full((2, 64), 0)
    wide[:, : case.block_tables.shape[1]] = case.block_tables
    splits, least = decode.num_splits(2, 64 * 16, torch.device("cpu"))
    assert (splits, least) == (4, 64)
    decode._WAVES = 8
    for tables in (case.block_tables, wide):
        got = decode.paged_decode_attention(
            *arguments[:3], tables, *arguments[4:], kv_scales=case.kv_scales
        )
        expected = reference.paged_decode_attention(*arguments, kv_scales=case.kv_scales)
        assert distance(got, expected) <= LIMITS[torch.float32], distance(got, expected)
    assert decode.num_splits(2, 64 * 16, torch.device("cpu")) == (16, 64)
    decode._WAVES = 2
assert not decode.counters(torch.device("cpu")).any()
print("joined")
"""


def test_parts_are_joined_in_several_goes(interpreting: Interpreting) -> None:
    assert interpreting.output(PROGRAM) == "joined"


@pytest.mark.parametrize(
    ("pairs", "tokens", "expected"),
    [
        (8, 1024, (16, 64)),  # one row: parts of 64 tokens
        (8, 1 << 20, (256 // 2, 64)),  # no more than can be joined
        (2048, 8208, (1, 4096)),  # rows alone fill the device
        (2048, 32_784, (4, 4096)),  # long ones are split all the same
        (1 << 17, 32_768, (1, 32_768)),  # too many to count their parts
    ],
)
def test_parts_follow_from_shapes(
    monkeypatch: pytest.MonkeyPatch, pairs: int, tokens: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr("daemon.engine.cuda.triton.decode._processors", lambda device: 132)
    assert num_splits(pairs, tokens, torch.device("cpu")) == expected


@pytest.mark.parametrize(("capability", "keys"), [(80, 64), (86, 64), (90, 128), (120, 64)])
def test_only_hopper_gets_hopper_s_tiles(capability: int, keys: int) -> None:
    tiling = prefill_tiling(128, torch.bfloat16, torch.bfloat16, capability)
    assert (tiling.rows, tiling.keys) == (128, keys)

"""Which attention cases are checked: head sizes, groups, pages, types, lengths and borders."""

from itertools import product

import torch

from tests.gpu.paged import Shape

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
INT8, FP8 = torch.int8, torch.float8_e4m3fn

SMALL = (
    Shape(4, 4, 64, 16, FP32, (0, 0, 0), (1, 16, 17)),
    Shape(9, 3, 64, 8, FP32, (7, 200, 0, 64), (5, 1, 33, 0)),
    Shape(2, 2, 80, 16, FP32, (30,), (20,)),
    Shape(6, 2, 96, 32, FP32, (1, 40), (1, 9)),
    Shape(8, 1, 128, 16, FP32, (130,), (6,)),
    Shape(16, 1, 64, 64, FP32, (0, 3), (20, 50)),
    Shape(5, 1, 256, 128, FP32, (140,), (3,)),
    Shape(14, 2, 64, 16, BF16, (37, 300), (4, 1)),
    Shape(8, 4, 128, 32, BF16, (0, 90), (40, 11)),
    Shape(4, 2, 80, 16, FP16, (12, 0), (7, 5)),
)
"""Small enough for the interpreter; every head size, dtype, odd groups, empty rows."""

SMALL_8BIT = (
    Shape(6, 2, 64, 16, FP32, (7, 100, 0), (5, 1, 33), INT8),
    Shape(4, 1, 80, 8, BF16, (30,), (6,), INT8),
    Shape(4, 4, 128, 32, BF16, (0, 40), (17, 1), FP8),
)

SMALL_VARIANTS = (
    Shape(4, 2, 64, 16, FP32, (0, 30, 100, 5), (1, 1, 9, 1), window=20),
    Shape(4, 2, 64, 16, BF16, (7, 200, 0), (40, 1, 3), INT8, window=17),
    Shape(6, 2, 80, 8, FP32, (90, 3), (1, 20), window=1, sinks=True),
    Shape(4, 4, 128, 16, BF16, (0, 150), (33, 1), cap=5.0),
    Shape(4, 1, 64, 32, FP32, (70, 1), (5, 1), FP8, window=48, cap=3.0, sinks=True),
    Shape(8, 2, 64, 16, BF16, (0, 300), (70, 1), sinks=True),
)
"""Windows, caps and sinks: alone, together, and over 8-bit caches."""

_KV_HEADS_GROUP_BLOCK = ((8, 4, 16), (4, 7, 32), (2, 16, 128), (12, 1, 64), (4, 5, 8))
_HEAD_DIMS = (64, 80, 96, 128, 256)
_ROWS = (
    ((0, 1000, 33, 2047), (700, 513, 1, 129)),
    (tuple(range(0, 4000, 250)), (1,) * 16),
)


def large(dtype: torch.dtype, kinds: int, kv_dtype: torch.dtype | None = None) -> tuple[Shape, ...]:
    """Every head size with the first `kinds` of heads, groups and pages."""
    return tuple(
        Shape(kv_heads * group, kv_heads, head_dim, block_size, dtype, *rows, kv_dtype)
        for head_dim in _HEAD_DIMS
        for kv_heads, group, block_size in _KV_HEADS_GROUP_BLOCK[:kinds]
        for rows in _ROWS
    )


_BORDERS = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_COUNTS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130)
_PAIRS = tuple(zip(*product(_BORDERS, _COUNTS), strict=True))
_LONG = 32 * 1024
LONG_FLOAT32 = Shape(8, 2, 128, 16, FP32, (_LONG - 1, 20_000), (1, 1))
"""A shape in which, in float32, one missing key shows."""


def edges(kv_dtype: torch.dtype | None = None) -> tuple[Shape, ...]:
    """Chunks around every border of a tile, contexts of 1 to 32k tokens, large batches."""
    lengths = (*range(300), 511, 512, 1022, 1023, 1024, 2047, 4096, 8191)
    small_heads = (8, 2, 128, 16, BF16)
    return (
        Shape(*small_heads, *_PAIRS, kv_dtype),
        Shape(4, 2, 64, 32, BF16, *_PAIRS, kv_dtype),
        Shape(*small_heads, lengths, (1,) * len(lengths), kv_dtype),
        Shape(*small_heads, (1023,) * 256, (1,) * 256, kv_dtype),
        Shape(*small_heads, (_LONG - 1,), (1,), kv_dtype),
        Shape(*small_heads, (_LONG - 257,), (257,), kv_dtype),
        Shape(8, 2, 128, 128, BF16, (_LONG - 1, 0, 5, 16383), (1,) * 4, kv_dtype),
        Shape(8, 1, 256, 8, BF16, (_LONG - 70, 3), (70, 9), kv_dtype),
        Shape(32, 8, 128, 16, BF16, (4095, 20, 0), (1, 1, 2048), kv_dtype),
    )


def groups() -> tuple[Shape, ...]:
    """Every number of query heads of a KV head from 1 to 16, and more than a tile has rows."""
    rows = ((0, 100, 1000), (70, 1, 33))
    return tuple(Shape(2 * group, 2, 128, 16, BF16, *rows) for group in (*range(1, 17), 24, 32))


def variants() -> tuple[Shape, ...]:
    """Windows about every border of a tile, with caps and sinks, over each kind of cache."""
    rows = ((0, 1000, 33, 2047, 0), (700, 513, 1, 129, 1))
    singles = (tuple(range(0, 4000, 250)), (1,) * 16)
    return tuple(
        Shape(8, 2, head_dim, 16, BF16, *tokens, kv_dtype, window, cap, sinks)
        for window, cap, sinks in (
            (1, 0.0, False),
            (128, 0.0, True),
            (1000, 0.0, False),
            (0, 50.0, False),
            (1024, 30.0, True),
        )
        for head_dim in (64, 128, 256)
        for kv_dtype in (None, INT8)
        for tokens in (rows, singles)
    )


KINDS = {
    "small": SMALL + SMALL_8BIT + SMALL_VARIANTS,
    "variants": variants(),
    "bfloat16": large(BF16, 5),
    # Fewer in float32, whose products take seconds each to compile.
    "other-floats": large(FP16, 2) + large(FP32, 1) + (LONG_FLOAT32,),
    "edges": edges(),
    "groups": groups(),
    "int8": large(BF16, 2, INT8) + edges(INT8),
    "fp8": large(BF16, 2, FP8) + edges(FP8),
}
"""The cases that one process checks at a time."""

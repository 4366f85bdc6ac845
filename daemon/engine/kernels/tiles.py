"""What decode and prefill attention share: one tile of keys, folded into a running softmax."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
_TILE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Tiling:
    """What is known when a kernel is compiled."""

    dim: int  # head size, padded to a power of two
    keys: int  # keys of a tile
    rows: int  # most query rows of a tile
    precision: str  # of products of float32
    product: tl.dtype  # type of the operands of products

    @staticmethod
    def of(head_dim: int, dtype: torch.dtype) -> "Tiling":
        """Tiles of 16 KiB, of 32 KiB for queries: two stages fit the 99 KiB of a small GPU."""
        dim = triton.next_power_of_2(head_dim)
        keys = max(16, min(128, _TILE_BYTES // (dim * dtype.itemsize)))
        rows = min(256 // dtype.itemsize, 2 * _TILE_BYTES // (dim * dtype.itemsize))
        precision = "ieee" if dtype == torch.float32 else "tf32"
        return Tiling(dim, keys, rows, precision, _product_type(dtype))


def _product_type(dtype: torch.dtype) -> tl.dtype:
    # Triton's interpreter multiplies the bits of bfloat16 as integers.
    if dtype == torch.float32 or (dtype == torch.bfloat16 and triton.knobs.runtime.interpret):
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


def layer_views(kv_cache: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer's keys and values, [block, block_size, kv_head, head_dim], no copy."""
    if kv_cache.stride(-1) != 1:
        raise ValueError("the cache's head_dim must be contiguous")
    return kv_cache[:, layer, 0], kv_cache[:, layer, 1]


def new_output(query: torch.Tensor) -> torch.Tensor:
    """Room for the result, contiguous. Raises ValueError if the query's head_dim is not."""
    if query.stride(-1) != 1:
        raise ValueError("the query's head_dim must be contiguous")
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@triton.jit
def fold_tile(
    acc, peak, total, query, keys_ptr, values_ptr, table_ptr, positions, stop, limits, dims,
    stride_block, stride_token, scale_log2,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold keys and values at `positions` [N] into `acc` [M, D], `peak` and `total` [M].

    MASKED: positions from `stop` on are not read, and row m sees those below `limits[m]` only.
    """
    if MASKED:
        valid = positions < stop
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=valid, other=0)
    else:
        valid = positions >= 0
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE)
    # 64 bits: a pool of many gigabytes has more than 2 ** 31 elements.
    rows = blocks.to(tl.int64) * stride_block + (positions % BLOCK_SIZE) * stride_token
    cells = rows[:, None] + dims[None, :]
    mask = valid[:, None] & (dims < HEAD_DIM)[None, :]
    keys = tl.load(keys_ptr + cells, mask=mask, other=0.0)
    keys = tl.trans(keys.to(PRODUCT))
    scores = tl.dot(query.to(PRODUCT), keys, input_precision=PRECISION) * scale_log2
    if MASKED:
        scores = tl.where(positions[None, :] < limits[:, None], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    values = tl.load(values_ptr + cells, mask=mask, other=0.0)
    product = tl.dot(
        weights.to(values.dtype).to(PRODUCT), values.to(PRODUCT), input_precision=PRECISION
    )
    return acc * fade[:, None] + product, new_peak, total * fade + tl.sum(weights, 1)

"""The parts that decode and prefill attention share: widths of tiles, addresses in a cache."""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from daemon.engine.cuda.triton.quantise import kind_of

LOG2_E = 1.4426950408889634
_HOPPER = 90
_SMALLEST = 80
"""Compute capabilities; Triton's interpreter is taken for the smallest. Of what came after Hopper,
some have no more shared memory than a workstation's card: they get its tiles."""
_STAGES = 5
"""The fewest with which Triton asks for a tile while the one before it is computed: where it lies
is read from a block table, which takes stages of its own."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel is cut, and how its products are computed; all known when it is compiled."""

    dim: int  # head size, padded to a power of two
    keys: int  # keys of a tile
    rows: int  # most query rows of a tile
    num_warps: int
    num_stages: int
    precision: str  # of products of float32
    product: tl.dtype  # type of the operands of products


@lru_cache
def decode_tiling(head_dim: int, dtype: torch.dtype, stored: torch.dtype) -> Tiling:
    """Small programs, of which an SM runs several: so the memory is never left without a request.

    `dtype` of the query, `stored` of the cache. Two warps need the fewest instructions for a tile,
    which counts where 8-bit numbers are unpacked on the way. A tile is 8 KiB of keys and as much of
    values.
    """
    dim = power_of_2(head_dim)
    kinds = precision_of(dtype), product_of(dtype, stored)
    if dtype.itemsize > 2:
        return Tiling(dim, _keys(16, dim, dtype), 16, 4, 2, *kinds)
    return Tiling(dim, _keys(8, dim, stored), 16, 2, _STAGES, *kinds)


@lru_cache
def prefill_tiling(
    head_dim: int, dtype: torch.dtype, stored: torch.dtype, capability: int
) -> Tiling:
    """Tiles as large as registers allow on Hopper; elsewhere what fits 99 KiB of shared memory.

    An 8-bit tile passes through registers on its way to the matrix units: of it half as much fits.
    Products of float32 keep all of their operands there.
    """
    dim = power_of_2(head_dim)
    kinds = precision_of(dtype), product_of(dtype, stored)
    share = 2 if kind_of(stored) else 1
    if dtype.itemsize > 2:
        return Tiling(dim, _keys(8, dim, dtype), 32, 4, 2, *kinds)
    if capability == _HOPPER:
        if dim > 128:
            return Tiling(dim, 32 // share, 64, 4, _STAGES, *kinds)
        return Tiling(dim, 128 // share, 128, 8, _STAGES, *kinds)
    rows = min(128, 16 * 1024 // dim)
    keys = min(128 // share, _keys(16 // share, dim, dtype))
    return Tiling(dim, keys, rows, 8 if rows * dim >= 128 * 128 else 4, 3, *kinds)


def capability_of(device: torch.device) -> int:
    """Ten times the major plus the minor compute capability of what kernels are compiled for."""
    if device.type == "cuda":
        return _capability(device)
    if triton.knobs.runtime.interpret:
        return _SMALLEST
    return int(driver.active.get_current_target().arch)


@lru_cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def power_of_2(count: int) -> int:
    """The least power of two that is not below a count of 1 or more; Triton's own takes longer."""
    return 1 << (count - 1).bit_length()


def layer_cells(kv_cache: torch.Tensor, layer: int) -> torch.Tensor:
    """A layer's keys [block, block_size, kv_head, head_dim], no copy; pairs [.., head_dim / 2] of
    8-bit numbers, as int16. Raises ValueError if head_dim is not contiguous."""
    if kv_cache.stride(-1) != 1:
        raise ValueError("the cache's head_dim must be contiguous")
    keys = kv_cache[:, layer, 0]
    return keys.view(torch.int16) if kind_of(kv_cache.dtype) else keys


def new_output(query: torch.Tensor) -> torch.Tensor:
    """Room for the result, contiguous. Raises ValueError if the query's head_dim is not."""
    if query.stride(-1) != 1:
        raise ValueError("the query's head_dim must be contiguous")
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _keys(tile_kib: int, dim: int, dtype: torch.dtype) -> int:
    return max(16, min(128, tile_kib * 1024 // (dim * dtype.itemsize)))


def precision_of(dtype: torch.dtype) -> str:
    """The precision of products of float32, by the type of states."""
    return "ieee" if dtype == torch.float32 else "tf32"


def product_of(dtype: torch.dtype, stored: torch.dtype) -> tl.dtype:
    """The type of products: float16 for 8-bit numbers, whose bits are nearly its (see `fold`)."""
    # Triton's interpreter multiplies the bits of bfloat16 as integers.
    if dtype == torch.float32 or (dtype == torch.bfloat16 and triton.knobs.runtime.interpret):
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 and not kind_of(stored) else tl.float16

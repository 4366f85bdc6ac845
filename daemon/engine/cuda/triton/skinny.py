"""Matrix products of few rows: y = x W^T + bias, bound by the reading of W.

Shapes, everywhere: states [T, in_features]; weight [out_features, in_features] as `nn.Linear` has
it; bias [out_features] or None; the result [T, out_features]. All are contiguous and of one type,
sums are float32 and rounded once. The same arguments give the same bits every time: where programs
share a sum, the last one to finish adds the parts, always in the same order.

From Hopper on a kernel may be `early`: it is launched while the one before it still runs, has its
weights fetched, and waits with all else until that one is done. It comes early by as much as that
one allows, which is nothing unless it calls `gdc_launch_dependents`.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from daemon.engine.cuda.triton.tiles import power_of_2

_WIDE = 64
"""Outputs from which Hopper multiplies by groups of four warps."""
_LINE = tl.constexpr(64)
"""Numbers of 16 bits in a line of the device's caches."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The strip of a single program of `strip_product`, and its warps."""

    rows: int  # of states, at most; a power of two
    outputs: int  # rows of the weight, a power of two
    warps: int
    early: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a single program of `tiled_product`, and how it is computed."""

    rows: int  # of states, a power of two from 16
    outputs: int  # rows of the weight, a power of two from 16
    depth: int  # in_features read at a time, a power of two from 16
    warps: int
    stages: int  # pieces of `depth` on their way at the same time
    early: bool = False

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a program takes of a processor, for numbers of 16 bits.

        Hopper's tensor cores read it while they multiply, so one stage more is held.
        """
        held = self.stages if self.early and self.outputs >= _WIDE else self.stages - 1
        return 2 * held * self.depth * (self.rows + self.outputs)

    def count(self, rows: int, out_features: int) -> tuple[int, int]:
        """Tiles along the rows of states, and along those of the weight."""
        return -(-rows // self.rows), -(-out_features // self.outputs)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for the parts of sums that programs share; one product at a time uses it.

    `partial` float32 [tiles * splits * outputs * rows of a tile]; `counters` int32 [tiles], which
    are 0 between products.
    """

    partial: torch.Tensor
    counters: torch.Tensor

    @staticmethod
    def of(cells: int, tiles: int, device: torch.device) -> "Scratch":
        """Room for `cells` partial sums of `tiles` tiles."""
        return Scratch(
            torch.empty(cells, dtype=torch.float32, device=device),
            torch.zeros(tiles, dtype=torch.int32, device=device),
        )


def strip_product(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    strip: Strip,
    compile_only: bool = False,
) -> torch.Tensor:
    """Without tensor cores, for up to `strip.rows` rows: a program reads rows of W whole, at once.

    `compile_only`: nothing is computed, only the kernel is made.
    """
    rows, in_features = states.shape
    depth = power_of_2(in_features)
    run = runner(_strip, (-(-len(weight) // strip.outputs),), compile_only)
    run(
        states, weight, bias, out, rows, len(weight), in_features,
        ROWS=strip.rows, OUTPUTS=strip.outputs, DEPTH=depth, EVEN=depth == in_features,
        EARLY=strip.early, num_warps=strip.warps, launch_pdl=strip.early,
    )  # fmt: skip
    return out


def tiled_product(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile,
    splits: int,
    scratch: Scratch,
    compile_only: bool = False,
) -> torch.Tensor:
    """With tensor cores: a program computes a tile of y, or one of `splits` parts of its sum.

    `scratch` must have room (`Tile.count`) where `splits` > 1. `compile_only`: nothing is
    computed, only the kernel is made.
    """
    rows, in_features = states.shape
    run = runner(_tiled, (*tile.count(rows, len(weight)), splits), compile_only)
    run(
        states, weight, bias, out, scratch.partial, scratch.counters,
        rows, len(weight), in_features, splits,
        ROWS=tile.rows, OUTPUTS=tile.outputs, DEPTH=tile.depth,
        EVEN=in_features % tile.depth == 0, PRODUCT=product_type(states.dtype),
        LINES=power_of_2(-(-(tile.stages - 1) * tile.depth // _LINE.value)), EARLY=tile.early,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
    )  # fmt: skip
    return out


def runner(kernel: Any, grid: tuple[int, ...], compile_only: bool) -> Callable[..., object]:
    """A function that launches a kernel, or only compiles it."""

    def make(*arguments: object, **constants: object) -> object:
        return kernel.warmup(*arguments, grid=grid, **constants)

    return make if compile_only else kernel[grid]


def product_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which operands of `dtype` are multiplied."""
    # Triton's interpreter multiplies the bits of bfloat16 as integers.
    if triton.knobs.runtime.interpret or dtype == torch.float32:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


@triton.jit(do_not_specialize=["rows"])
def _strip(
    states_ptr, weight_ptr, bias_ptr, out_ptr, rows, out_features, in_features,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """OUTPUTS columns of y, of ROWS rows; DEPTH covers in_features."""
    first = tl.program_id(0) * OUTPUTS
    depth = tl.arange(0, DEPTH)
    column = first + tl.arange(0, OUTPUTS)
    # Outputs beyond the last repeat it, and are not written: reading them needs no mask.
    within = tl.minimum(tl.arange(0, OUTPUTS), out_features - 1 - first)
    weight_ptr += first.to(tl.int64) * in_features
    cells = within[:, None] * in_features + depth[None, :]
    # A constant where it is always true, or each load would be under a condition.
    inside = depth < (DEPTH if EVEN else in_features)
    weight = tl.load(weight_ptr + cells, inside[None, :], other=0.0, eviction_policy="evict_first")
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    for row in tl.static_range(ROWS):
        states = states_ptr + tl.minimum(row, rows - 1) * in_features + depth
        state = tl.load(states, mask=inside, other=0.0)
        total = tl.sum(weight.to(tl.float32) * state.to(tl.float32)[None, :], 1)
        mask = column < tl.where(row < rows, out_features, 0)
        if bias_ptr is not None:
            total += tl.load(bias_ptr + column, mask=mask, other=0.0).to(tl.float32)
        target = out_ptr + row * out_features + column
        tl.store(target, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "splits"])
def _tiled(
    states_ptr, weight_ptr, bias_ptr, out_ptr, partial_ptr, counters_ptr,
    rows, out_features, in_features, splits,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr,
    PRODUCT: tl.constexpr, LINES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One tile of y, transposed: the weight's rows are the many that tensor cores want."""
    first_row, first_output = tl.program_id(0) * ROWS, tl.program_id(1) * OUTPUTS
    split = tl.program_id(2)
    row, column = first_row + tl.arange(0, ROWS), first_output + tl.arange(0, OUTPUTS)
    depth = tl.arange(0, DEPTH)
    span = tl.cdiv(tl.cdiv(in_features, splits), DEPTH) * DEPTH
    first = split * span
    stop = tl.minimum(first + span, in_features)
    # Outputs beyond the last repeat it, and are not written: reading them needs no mask.
    within = tl.minimum(tl.arange(0, OUTPUTS), out_features - 1 - first_output)
    weights = weight_ptr + first_output.to(tl.int64) * in_features
    if EARLY:
        # What the loop asks for at once. More would keep it at the cache while memory is idle.
        line = tl.minimum(first + tl.arange(0, LINES) * _LINE, in_features - 1)
        _fetch(weights + within[:, None] * in_features + line[None, :])
        gdc_launch_dependents()
        gdc_wait()
    weights += first + within[:, None] * in_features + depth[None, :]
    states = states_ptr + first_row.to(tl.int64) * in_features + first
    states += tl.arange(0, ROWS)[:, None] * in_features + depth[None, :]
    used = (row < rows)[:, None]
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(first, stop, DEPTH):
        if EVEN:
            weight = tl.load(weights)
            state = tl.load(states, mask=used, other=0.0)
        else:
            inside = (depth < stop - begin)[None, :]
            weight = tl.load(weights, mask=inside, other=0.0)
            state = tl.load(states, mask=used & inside, other=0.0)
        acc = tl.dot(weight.to(PRODUCT), tl.trans(state).to(PRODUCT), acc)
        weights += DEPTH
        states += DEPTH
    is_last = splits == 1
    if splits > 1:
        acc, is_last = add_parts(acc, partial_ptr, counters_ptr, split, splits, OUTPUTS, ROWS)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=column < out_features, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    target = out_ptr + row.to(tl.int64)[None, :] * out_features + column[:, None]
    mask = (column < tl.where(is_last, out_features, 0))[:, None] & (row < rows)[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _fetch(pointers):
    """Prefetch the cache lines of pointers to the second-level cache, without a wait."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [pointers.to(tl.uint64)], tl.int32, False, 1
    )


@triton.jit
def add_parts(
    acc, partial_ptr, counters_ptr, split, splits, OUTPUTS: tl.constexpr, ROWS: tl.constexpr
):
    """Leave a part of a tile's sum; the last program gets the whole sum, and True."""
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    partial_ptr += tile.to(tl.int64) * splits * (OUTPUTS * ROWS)
    cells = tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(partial_ptr + split * (OUTPUTS * ROWS) + cells, acc)
    # All threads' stores come before the one thread's count, which other programs acquire.
    tl.debug_barrier()
    arrived = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel")
    is_last = arrived == splits - 1
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for part in range(tl.where(is_last, splits, 0)):
        # Past the first-level cache, which does not see what other processors write.
        total += tl.load(partial_ptr + part * (OUTPUTS * ROWS) + cells, cache_modifier=".cg")
    tl.store(counters_ptr + tile, 0, mask=is_last)
    return total, is_last

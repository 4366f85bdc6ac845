"""Parts of a row's attention, left in memory and joined by the program that ends last."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def leave_part(
    mean, mass, partial_ptr, masses_ptr, counters_ptr, out_ptr, pair, first_head,
    split, splits, parts, out_stride_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr, JOINED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Leave a part's `mean` [ROWS, DIM] and softmax mass [ROWS] (a log2); join `parts`, if last.

    `pair` counts (row, KV head) int64, whose GROUP query heads begin with `first_head` of the row
    at `out_ptr`. A pair has `splits` cells for each query head, of which `parts` are used, and one
    of `counters_ptr`, which is 0 again afterwards.
    """
    member, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    cells = (pair * GROUP + member) * splits + split
    there = member < GROUP
    tl.store(masses_ptr + cells, mass, mask=there)
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(partial_ptr + cells[:, None] * HEAD_DIM + dims[None, :], mean, mask=mask)
    # All threads have written before one of them says so, and others may read after it.
    tl.debug_barrier()
    if tl.atomic_add(counters_ptr + pair, 1, sem="acq_rel", scope="gpu") == parts - 1:
        tl.store(counters_ptr + pair, 0)
        _join(
            partial_ptr, masses_ptr, out_ptr, pair, first_head, splits, parts, out_stride_head,
            GROUP, MEMBERS, JOINED, HEAD_DIM, DIM,
        )  # fmt: skip


@triton.jit
def _join(
    partial_ptr, masses_ptr, out_ptr, pair, first_head, splits, parts, out_stride_head,
    GROUP: tl.constexpr, MEMBERS: tl.constexpr, JOINED: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    """The parts' mean by their masses, JOINED at a time and always in the same order."""
    member, dims = tl.arange(0, MEMBERS), tl.arange(0, DIM)
    there = member < GROUP
    begins = (pair * GROUP + member) * splits
    mean = tl.zeros([MEMBERS, DIM], tl.float32)
    peak = tl.full([MEMBERS], float("-inf"), tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    for begin in range(0, parts, JOINED):
        part = begin + tl.arange(0, JOINED)
        cells = begins[None, :] + part[:, None]
        mask = (part < parts)[:, None] & there[None, :]
        mass = tl.load(masses_ptr + cells, mask=mask, other=float("-inf"))
        cells = cells[:, :, None] * HEAD_DIM + dims[None, None, :]
        mask = mask[:, :, None] & (dims < HEAD_DIM)[None, None, :]
        partial = tl.load(partial_ptr + cells, mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.where(there, tl.max(mass, 0), 0.0))
        weights = tl.exp2(mass - new_peak[None, :])
        fade = tl.exp2(peak - new_peak)
        mean = mean * fade[:, None] + tl.sum(partial * weights[:, :, None], 0)
        total = total * fade + tl.sum(weights, 0)
        peak = new_peak
    mean /= tl.where(there, total, 1.0)[:, None]
    cells = ((first_head + member) * out_stride_head)[:, None] + dims[None, :]
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out_ptr + cells, mean.to(out_ptr.dtype.element_ty), mask=mask)

"""Paged attention against its torch reference, on a GPU or through the interpreter."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.eight_bit import kv_fault
from tests.gpu.attempts import attempted, failed
from tests.gpu.kernel_shapes import KINDS
from tests.gpu.paged import LAYER, Paged, Shape, paged

SPARE = 3
LIMITS = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""The bound of the distance from the reference over its own length, for each token and head.
Rounding the softmax's weights and the result makes a third of it; a single missing key of 1,000
makes more."""


def attention_checks(kind: str, device: str) -> Iterator[Check]:
    """Decode and prefill attention of each shape of a kind (see `kernel_shapes.KINDS`)."""
    for seed, shape in enumerate(KINDS[kind]):
        if fault := kv_fault(shape.kv_dtype, torch.device(device)):
            yield Check(f"attention {shape} is refused", 0.0, 0.0, fault)
            continue
        yield from attempted(f"attention {shape}", partial(_checks, shape, device, seed))


def _checks(shape: Shape, device: str, seed: int) -> Iterator[Check]:
    case = paged(shape, device, seed, SPARE)
    yield _check_decode(shape, case)
    if len(shape.counts) > 64 and max(shape.counts) == 1:
        return  # a reference of hundreds of rows, once
    yield _check_prefill(shape, case)
    if len(shape.counts) > 1:
        yield _check_gaps(shape, case)


def _check_decode(shape: Shape, case: Paged) -> Check:
    """One token a row; a row without tokens too. Twice, since what races does not repeat."""
    query = case.query[: len(shape.lengths)]
    arguments = (case.kv_cache, LAYER, case.block_tables, case.lengths, shape.scale)
    rules: Any = {"kv_scales": case.kv_scales, "variant": case.variant}
    got = kernels.paged_decode_attention(query, *arguments, out=_poison(query), **rules)
    again = kernels.paged_decode_attention(query, *arguments, **rules)
    expected = reference.paged_decode_attention(query, *arguments, **rules)
    if not torch.equal(got, again):
        return failed(f"decode  {shape}", "another result at the second time, or NaN")
    return Check(f"decode  {shape}", distance(got, expected), LIMITS[shape.dtype])


def _check_prefill(shape: Shape, case: Paged) -> Check:
    """Chunks of mixed lengths; queries of no row stay untouched."""
    arguments = (case.kv_cache, LAYER, case.block_tables, case.starts, case.counts)
    rest = (case.row_offsets, shape.scale)
    rules: Any = {"kv_scales": case.kv_scales, "variant": case.variant}
    poison = _poison(case.query)
    got = kernels.paged_prefill_attention(case.query, *arguments, *rest, out=poison, **rules)
    expected = reference.paged_prefill_attention(case.query, *arguments, *rest, **rules)
    tokens = sum(shape.counts)
    if not got[tokens:].isnan().all():
        return failed(f"prefill {shape}", "wrote tokens of no row")
    error = distance(got[:tokens], expected[:tokens])
    return Check(f"prefill {shape}", error, LIMITS[shape.dtype])


def _check_gaps(shape: Shape, case: Paged) -> Check:
    """Every second row alone, as when the others' single tokens go to the decode kernel."""
    columns = (case.block_tables, case.starts, case.counts, case.row_offsets[:-1])
    some = [column[1::2].contiguous() for column in columns]
    arguments = (case.kv_cache, LAYER, *some, shape.scale)
    rules: Any = {"kv_scales": case.kv_scales, "variant": case.variant}
    poison = _poison(case.query)
    got = kernels.paged_prefill_attention(case.query, *arguments, out=poison, **rules)
    expected = reference.paged_prefill_attention(case.query, *arguments, **rules)
    mine = torch.zeros(len(case.query), dtype=torch.bool, device=case.query.device)
    for row in range(1, len(shape.counts), 2):
        first = sum(shape.counts[:row])
        mine[first : first + shape.counts[row]] = True
    if not got[~mine].isnan().all():
        return failed(f"prefill gaps {shape}", "wrote tokens of no row")
    return Check(f"prefill gaps {shape}", distance(got[mine], expected[mine]), LIMITS[shape.dtype])


def _poison(query: torch.Tensor) -> torch.Tensor:
    return torch.full_like(query, torch.nan)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance of a vector (last dimension) from what it should be, over its length.

    Absolute where it should be 0; NaN where either has one.
    """
    if not got.numel():
        return 0.0
    lengths = expected.double().norm(dim=-1)
    away = (got.double() - expected.double()).norm(dim=-1)
    return float((away / lengths.where(lengths > 0, 1.0)).max())

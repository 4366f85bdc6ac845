"""The tokens that filters keep: the kernel's cut against a plain sort in double precision."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from benchmarks.gpu.report import Check
from daemon.engine.cuda.triton.choose_tokens import FIELDS, INVERSE, cut_of
from daemon.engine.cuda.triton.sample import DEFAULT_SIZES, Sizes, sample
from daemon.engine.sampler.noise import UInts, keys, noise
from tests.gpu.attempts import attempted
from tests.soak import tries

Row = npt.NDArray[np.float32]

TEMPERATURES = (0.4, 1.0, 3.0)
FILTERS = (
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (20, 1.0, 0.0),
    (200, 1.0, 0.0),
    (0, 0.0, 0.0),
    (0, 0.3, 0.0),
    (0, 0.9, 0.0),
    (0, 0.999, 0.0),
    (0, 1.0, 0.2),
    (90, 1.0, 0.0),
    (100, 0.7, 0.2),
    (40, 0.7, 0.0),
    (0, 1.0, 1.0),
    (0, 0.5, 0.5),
)
"""top_k (0: off), top_p, min_p."""
DRAWN = ((90, 1.0, 0.0), (100, 0.7, 0.2))
"""Those whose draws the interpreter is asked for; their cuts it finds for all."""
LARGE_SIZES = (DEFAULT_SIZES, Sizes(chunk=512, tile=256, capacity=256))
SMALL_SIZES = (Sizes(chunk=128, tile=128, capacity=64),)
"""Some with lists that overflow, so that whole rows are read."""
LARGE_PROBES, SMALL_PROBES = 1024, tries(2, 4)
"""Tokens sampled of a row, each with noise of its own."""
ROUNDING = 3e-6
"""The tolerance of a sum of 100,000 float32 weights, by which top-p may cut sooner or later."""


def kept_checks(device: str) -> Iterator[Check]:
    """Rows of distinct logits, of many equal ones, and with tokens that cannot be drawn."""
    large = device.startswith("cuda")
    rows = _rows(128_256 if large else 250)
    kinds = ("distinct", "masked", "ties") if large else ("distinct", "ties")
    for kind in kinds:
        for temperature in TEMPERATURES if large else (1.0,):
            name = f"kept {kind} temperature {temperature}"
            yield from attempted(name, partial(_cuts, name, rows[kind], temperature, device))
    for kind in kinds:
        for sizes in LARGE_SIZES if large else SMALL_SIZES:
            name = f"kept {kind} capacity {sizes.capacity}"
            yield from attempted(name, partial(_draws, name, rows[kind], sizes, device))


def _rows(vocab: int) -> dict[str, Row]:
    chance = np.random.default_rng(5)
    distinct = (3 * chance.standard_normal(vocab)).astype(np.float32)
    # The best are many, and none is in the first tiles.
    ties = np.minimum(np.round(distinct * 2) / 2, np.float32(4.5))
    ties[: vocab // 2 + 5] = -np.inf
    masked = np.where(chance.random(vocab) < 0.97, -np.inf, distinct).astype(np.float32)
    return {"distinct": distinct, "ties": ties, "masked": masked}


def _depths(row: Row, temperature: float) -> Row:
    """As a kernel computes them, each operation rounded to float32."""
    return (row.max() - row) * np.float32(1 / temperature)


def _kept(depths: Row, top_k: int, top_p: float, min_p: float) -> npt.NDArray[np.bool_]:
    """The tokens that the filters leave, ties at each cut included."""
    rising = np.sort(depths)
    cut = np.float32(np.inf)
    weights = np.exp(-rising.astype(np.float64))
    if top_k:
        cut = rising[top_k - 1]
        weights[rising > cut] = 0.0
    if top_p < 1:
        reached = np.cumsum(weights) >= np.float32(top_p) * weights.sum()
        cut = min(cut, rising[int(np.argmax(reached))])
    with np.errstate(divide="ignore"):
        return depths <= min(cut, np.float32(-np.log(np.float32(min_p))))


def _table(temperature: float, noise: UInts, filters: tuple[int, float, float]) -> torch.Tensor:
    top_k, top_p, min_p = filters
    table = np.empty((len(noise), 5))
    with np.errstate(divide="ignore"):
        reach = 0.0 - np.log(np.float32(min_p))
    table[:, :4] = np.float32(1 / temperature), top_k, np.float32(top_p), reach
    table.view(np.uint64)[:, 4] = noise
    return torch.from_numpy(table)


def _cuts(name: str, row: Row, temperature: float, device: str) -> Iterator[Check]:
    """Tokens that are kept and should not be, or the other way round, over all filters."""
    logits, depths, wrong = torch.from_numpy(row).to(device), _depths(row, temperature), 0
    for filters in FILTERS:
        table = _table(temperature, np.zeros(1, np.uint64), filters).to(device)
        out = torch.zeros(1, dtype=torch.int64, device=device)
        _probe[(1,)](logits, table, out, VOCAB=len(row), TILE=1024)
        kept = depths.view(np.uint32) <= int(out[0])
        least, most = _narrow_and_wide(depths, filters)
        wrong += int((kept & ~most).sum() + (least & ~kept).sum())
    yield Check(f"{name} cuts", wrong, 0, "tokens")


@triton.jit
def _probe(logits_ptr, rows_ptr, out_ptr, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The cut of one row, as bits."""
    best = tl.max(tl.full([TILE], float("-inf"), tl.float32), 0)
    for first in range(0, VOCAB, TILE):
        column = first + tl.arange(0, TILE)
        logit = tl.load(logits_ptr + column, mask=column < VOCAB, other=float("-inf"))
        best = tl.maximum(best, tl.max(logit, 0))
    field = rows_ptr + tl.program_id(0) * FIELDS
    inverse = tl.load(field + INVERSE).to(tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for first in range(0, VOCAB, TILE):
        column = first + tl.arange(0, TILE)
        logit = tl.load(logits_ptr + column, mask=column < VOCAB, other=float("-inf"))
        total += tl.sum(tl.exp((logit - best) * inverse), 0)
    cut = cut_of(logits_ptr, VOCAB, field, best, inverse, total, TILE)
    tl.store(out_ptr, cut.to(tl.int64))


def _narrow_and_wide(
    depths: Row, filters: tuple[int, float, float]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """The tokens kept at least, and at most, by rounding."""
    top_k, top_p, min_p = filters
    least, most = (
        _kept(depths, top_k, top_p * (1 + nudge) if top_p < 1 else top_p, min_p)
        for nudge in (-ROUNDING, ROUNDING)
    )
    return least, most


def _draws(name: str, row: Row, sizes: Sizes, device: str) -> Iterator[Check]:
    """The token of the best score is drawn, noise and depth together; greedily the first of the
    best, in whatever chunk.
    """
    depths, wrong = _depths(row, 1.0), 0
    for filters in FILTERS if device.startswith("cuda") else DRAWN:
        probes = LARGE_PROBES if device.startswith("cuda") else SMALL_PROBES
        places = keys(np.arange(probes + 1, dtype=np.uint64), np.full(probes + 1, 7))
        logits = torch.from_numpy(row).to(device).expand(probes + 1, -1).contiguous()
        table = _table(1.0, places, filters)
        table[-1, 0] = 0.0  # greedy
        drawn = sample(logits, table.to(device), drawing=True, filtering=True, sizes=sizes).cpu()
        *found, best = drawn[0].tolist()
        wrong += int(drawn[1].sum()) + (best != row.argmax())
        allowed = [np.where(kept, depths, np.inf) for kept in _narrow_and_wide(depths, filters)]
        for token, place in zip(found, places, strict=False):
            scores = noise(place, np.arange(len(row)))
            wrong += token not in [int((scores - depth).argmax()) for depth in allowed]
    yield Check(f"{name} draws", int(wrong), 0, "tokens")

"""Head norms, rotation and KV write in one kernel, against torch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.eight_bit import LARGEST
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Norm
from tests.gpu.attempts import attempted
from tests.gpu.kernel_shapes import BF16, FP8, FP16, FP32, INT8
from tests.gpu.paged import LAYER, LAYERS
from tests.gpu.poison import apart, error, limit, untouched

NUM_BLOCKS = 7
BLOCKS = (6, -1, 0, 3, 3)
"""The blocks of five tokens; the second is not kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """Heads, and the types of states and of what is stored."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    norms: bool
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None

    def __str__(self) -> str:
        kinds = [kind for kind in (self.dtype, self.kv_dtype) if kind is not None]
        dtype = "/".join(str(kind).removeprefix("torch.") for kind in kinds)
        heads = f"{self.num_heads}/{self.num_kv_heads}x{self.head_dim}"
        return f"{heads} turning {self.rotary_dim} {'normed ' if self.norms else ''}{dtype}"


SMALL = (
    Case(4, 4, 64, 64, False, 16, FP32),
    Case(9, 3, 64, 64, True, 8, FP32),
    Case(5, 5, 80, 20, False, 16, FP32),
    Case(2, 1, 80, 80, True, 32, FP32),
    Case(20, 2, 96, 32, False, 16, FP16),
    Case(33, 11, 128, 128, True, 16, FP16),
    Case(6, 2, 256, 64, True, 128, FP32),
    Case(14, 2, 64, 64, False, 16, BF16),
    Case(6, 3, 128, 128, False, 16, FP32, INT8),
    Case(4, 1, 80, 80, True, 8, FP32, INT8),
    Case(4, 2, 96, 96, False, 16, BF16, FP8),
)
LARGE = tuple(
    Case(*heads, head_dim, rotary_dim, normed, 16, BF16, kv_dtype)
    for (head_dim, rotary_dim, *heads), (normed, kv_dtype) in itertools.product(
        ((64, 64, 14, 2), (80, 32, 40, 40), (96, 96, 28, 4), (128, 128, 32, 8), (256, 64, 16, 1)),
        ((True, None), (False, INT8), (True, FP8)),
    )
)


def place_checks(device: str) -> Iterator[Check]:
    """Every head size, type and group, byte by byte around what is written."""
    cases = SMALL + LARGE if device.startswith("cuda") else SMALL
    for case in cases:
        if case.kv_dtype != FP8 or _knows_fp8(device):
            yield from attempted(f"place {case}", partial(_checks, case, device))


def _knows_fp8(device: str) -> bool:
    return not device.startswith("cuda") or torch.cuda.get_device_capability(device) >= (8, 9)


def _checks(case: Case, device: str) -> Iterator[Check]:
    chance = torch.Generator().manual_seed(case.head_dim)
    tokens, width = len(BLOCKS), case.num_heads + 2 * case.num_kv_heads
    rows = _states(case, chance)
    expected = apart(rows.flatten(1), case.dtype, device).unflatten(1, (width, case.head_dim))
    got = apart(rows.flatten(1), case.dtype, device).unflatten(1, (width, case.head_dim))
    heads = _heads(case, chance, device)
    cos, sin = _angles(case, chance, device)
    offsets = [0, 5, case.block_size - 1, 1, 2]
    slots = [torch.tensor(c, dtype=torch.int32, device=device) for c in (BLOCKS, offsets)]
    ours, theirs = _pools(case, device)
    kernels.place(got, cos, sin, ours.blocks, ours.scales, LAYER, *slots, heads)
    reference.place(expected, cos, sin, theirs.blocks, theirs.scales, LAYER, *slots, heads)
    turned = slice(0, case.num_heads)
    yield Check(
        f"place {case}, queries", error(got[:, turned], expected[:, turned]), limit(case.dtype)
    )
    kept = [(block, LAYER, 0, at) for block, at in zip(BLOCKS, offsets, strict=True) if block >= 0]
    yield _key_check(f"place {case}, keys", ours, theirs, kept)
    # What is left: values, which nothing computes on, and all that is not to be written.
    wrong = int((ours.raw != theirs.raw).sum())
    wrong += int((got[:, case.num_heads :] != expected[:, case.num_heads :]).sum())
    wrong += int(not untouched(got.flatten(1)) or tokens != len(got))
    yield Check(f"place {case}, values and the rest", wrong, 0, "bytes")


def _key_check(name: str, ours: PagedKV, theirs: PagedKV, kept: list[tuple[int, ...]]) -> Check:
    """Keys as they come back; then wiped in both pools, so that the rest can be compared."""
    worst, count, differ = 0.0, 0, 0
    for cell in kept:
        pair = []
        for pool in (ours, theirs):
            keys = pool.blocks[cell].float()
            if pool.scales is not None:
                keys = keys * pool.scales[cell].unsqueeze(-1)
                pool.scales[cell] = 0.0
            pair.append(keys)
            pool.blocks[cell] = torch.zeros_like(pool.blocks[cell])
        worst = max(worst, error(pair[0], pair[1]))
        differ += int(((pair[0] - pair[1]).abs() > 1e-4 * pair[1].abs()).sum())
        count += pair[0].numel()
    if ours.kv_dtype in LARGEST:
        # A number between two steps may go to either, but few lie so exactly between them.
        return Check(name, differ / count, 0.005, "share of another step")
    return Check(name, worst, limit(ours.dtype))


def _states(case: Case, chance: torch.Generator) -> torch.Tensor:
    """[T, heads + 2 * kv_heads, head_dim], one head 0. Those for fp8 lie on its grid.

    Triton's interpreter rounds other numbers to fp8 wrongly.
    """
    shape = (len(BLOCKS), case.num_heads + 2 * case.num_kv_heads, case.head_dim)
    if case.kv_dtype == FP8 and triton.knobs.runtime.interpret:
        states = torch.randint(-14, 15, shape, generator=chance) / 2
        states[..., 3] = 7.0
        return states
    states = torch.randn(shape, generator=chance) * 2
    states[0, 0] = states[0, case.num_heads] = 0.0
    return states


def _heads(case: Case, chance: torch.Generator, device: str) -> Heads:
    norms: list[Norm | None] = [None, None]
    if case.norms:
        weights = torch.randn(2, case.head_dim, generator=chance).to(device, case.dtype)
        norms = [Norm(weights[0], 1e-6), Norm(weights[1], 0.3)]  # far enough to tell them apart
    return Heads(case.num_heads, case.num_kv_heads, case.head_dim, 1.0, *norms)


def _angles(case: Case, chance: torch.Generator, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, NaN behind their last rows; none turn where fp8 is interpreted."""
    turns = torch.randn(len(BLOCKS), case.rotary_dim // 2, generator=chance) * 5
    if case.kv_dtype == FP8 and triton.knobs.runtime.interpret:
        turns = torch.zeros_like(turns)
    turns = torch.cat((turns, turns), -1)
    behind = torch.full((1, case.rotary_dim), torch.nan)
    cos, sin = (torch.cat((part, behind)).to(device)[:-1] for part in (turns.cos(), turns.sin()))
    return cos, sin


def _pools(case: Case, device: str) -> tuple[PagedKV, PagedKV]:
    """Two pools of the same random bytes."""
    shape = (NUM_BLOCKS, LAYERS, case.block_size, case.num_kv_heads, case.head_dim, case.dtype)
    pools = tuple(PagedKV(*shape, torch.device(device), case.kv_dtype) for _ in range(2))
    chance = torch.Generator().manual_seed(1)
    rubbish = torch.randint(0, 256, pools[0].raw.shape, generator=chance, dtype=torch.uint8)
    for pool in pools:
        pool.raw.copy_(rubbish)
    return pools[0], pools[1]

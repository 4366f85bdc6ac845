"""Kernels over quantised weights: their numbers bit for bit, and products against float64."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda.block_implementations import UnpackedBlocks
from daemon.engine.cuda.products import choose_products
from daemon.engine.cuda.quantised import products
from daemon.engine.cuda.triton.block_products import BlockTile, block_product
from daemon.engine.cuda.triton.blocks import unpack_rows
from daemon.engine.cuda.triton.skinny import Scratch
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import CPU_ONLY, FORMATS, WeightFormat
from tests.engine.quantised.random_blocks import random_blocks
from tests.soak import tries

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
IN_BLOCKS = tuple(
    form for form in FORMATS.values() if form.block_len > 1 and form.name not in CPU_ONLY
)
LIMITS = {FP32: 1e-6, FP16: 2e-3, BF16: 1.2e-2}
"""The bound of an error relative to the sum of all terms' sizes: roundings of weights and of the
result, and Triton's interpreter, which truncates bfloat16 where it should round."""
_GUARD_ROWS = 2
_NAN_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class Case:
    """A product of some rows in one way."""

    rows: int
    outputs: int  # of the weight
    blocks: int  # of a row, as `_columns` counts
    tile: BlockTile
    splits: int = 1
    dtype: torch.dtype = FP32
    bias: bool = False

    def __str__(self) -> str:
        one = self.tile
        shape = f"{self.rows} x {self.outputs} in {one.outputs}x{one.rows}x{one.columns}"
        return f"{shape} /{self.splits} {str(self.dtype).removeprefix('torch.')}"


_ALL = (
    Case(1, 5, 3, BlockTile(1, 2, 512, 4), bias=True),
    Case(7, 17, 5, BlockTile(16, 16, 128, 4), 2, BF16, bias=True),
)
"""For every format: rows, outputs and columns that fill no tile."""
_SOME = (
    Case(2, 9, 4, BlockTile(2, 4, 256, 4), dtype=FP16),
    Case(3, 3, 5, BlockTile(4, 1, 128, 4), dtype=BF16, bias=True),
    Case(20, 33, 6, BlockTile(16, 32, 256, 4), dtype=FP32),
    Case(32, 40, 5, BlockTile(32, 64, 128, 8), 8, FP16),  # of which some have nothing to add
)
_SOME_FORMATS = ("Q4_0", "Q6_K", "int4/128", "fp8/32")


def block_checks(device: str) -> Iterator[Check]:
    """Every format, small and ragged; on a GPU products as they are chosen too."""
    for seed, form in enumerate(IN_BLOCKS):
        yield from _unpack_checks(form, seed, device)
        for case in _cases(form, seed, device):
            yield _product_check(form, case, seed, device)
    yield _powers_check(device)
    yield _panel_check(FORMATS["Q4_1"], device)
    if device.startswith("cuda"):
        for form in IN_BLOCKS:
            yield from _chosen_checks(form, device)


def _cases(form: WeightFormat, place: int, device: str) -> tuple[Case, ...]:
    """The products of a format. The interpreter, which is slow, is quickly asked for tiles of
    several rows in every second format: those of one row show that each is read as it should be.
    """
    if form.name in _SOME_FORMATS:
        return (*_ALL, *_SOME)
    return _ALL[: tries(1 + place % 2, len(_ALL))] if device == "cpu" else _ALL


def _powers_check(device: str) -> Check:
    """Every power of two of MXFP4, of which the two smallest are read otherwise."""
    form = FORMATS["MXFP4"]
    data = torch.from_numpy(random_blocks(form.name, 16, 512, 0)).to(device)
    data.view(256, form.block_bytes)[:, 0] = torch.arange(256)
    found = unpack_rows(form, data, torch.empty(16, 512, device=device))
    wrong = _different(found, unpack(form, data))
    return Check("blocks unpacked MXFP4 of every power, numbers wrong", wrong, 0)


def _panel_check(form: WeightFormat, device: str) -> Check:
    """A weight that is unpacked a part at a time, the last of which is no whole panel."""
    outputs, columns = 42, 3 * form.block_len
    data = guarded_blocks(form, outputs, columns, 3).to(device)
    panel = torch.zeros(16 * columns * FP32.itemsize, dtype=torch.uint8, device=device)
    states, bias = torch.randn(5, columns, device=device), torch.randn(outputs, device=device)
    got = UnpackedBlocks(panel)(states, QuantisedWeight(form, data, columns), bias)
    error = sum_error(got, states, unpack(form, data), bias)
    return Check(f"blocks in panels {form.name}", error, LIMITS[FP32])


def _chosen_checks(form: WeightFormat, device: str) -> Iterator[Check]:
    """A layer of two weights as chosen here, eager and as a CUDA graph."""
    shapes = (4096, 4096), (1024, 4096)
    weights = [
        QuantisedWeight(form, guarded_blocks(form, *shape, seed).to(device), shape[1])
        for seed, shape in enumerate(shapes)
    ]
    layer = QuantisedLinear(4096, 5120, None, weights)
    product = products([layer], BF16)(layer)
    choose_products([product], (1, 4, 16, 64))
    numbers = torch.cat([weight.numbers() for weight in weights])
    for count in (1, 3, 11, 16, 50, 64, 100):
        states = torch.randn(count, 4096, dtype=BF16, device=device)
        error = sum_error(product(states), states, numbers, None)
        yield Check(f"blocks as chosen {form.name} {count}", error, LIMITS[BF16])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = product(states)
        states.normal_()
        captured.fill_(torch.nan)
        graph.replay()
        error = sum_error(captured, states, numbers, None)
        yield Check(f"blocks captured {form.name} {count}", error, LIMITS[BF16])


def _unpack_checks(form: WeightFormat, seed: int, device: str) -> Iterator[Check]:
    """All rows and some, in every type that states have; nothing is written beside."""
    for rows, columns in ((11, _columns(form, 3)), (1, form.block_len)):
        data = guarded_blocks(form, rows, columns, seed).to(device)
        expected = unpack(form, data)
        wrong = 0
        for dtype in (FP32, BF16, FP16):
            guarded = torch.full((rows + 2, columns), torch.nan, dtype=dtype, device=device)
            unpack_rows(form, data, guarded[1:-1])
            wrong += _different(guarded[1:-1], _rounded(expected, dtype))
            wrong += int((~guarded[:: rows + 1].isnan()).sum())
        picked = torch.tensor([rows - 1, 0, rows // 2, 0, rows - 1], device=device)
        out = torch.empty(len(picked), columns, device=device)
        wrong += _different(unpack_rows(form, data, out, picked), expected[picked])
        yield Check(f"blocks unpacked {form.name} {rows} x {columns}, numbers wrong", wrong, 0)


def _product_check(form: WeightFormat, case: Case, seed: int, device: str) -> Check:
    """Right, the same twice, nothing read or written beside, counters back at 0."""
    name = f"blocks multiplied {form.name} {case}"
    columns = _columns(form, case.blocks)
    chance = torch.Generator().manual_seed(seed)
    data = guarded_blocks(form, case.outputs, columns, seed).to(device)
    guarded = torch.full((case.rows + 2, columns), torch.nan, dtype=case.dtype, device=device)
    states = guarded[1:-1]
    states.copy_(torch.randn(states.shape, generator=chance))
    bias = torch.randn(case.outputs, generator=chance).to(device, case.dtype) if case.bias else None
    scratch = scratch_for(case, device)
    results = []
    for _ in range(2):
        room = torch.full((case.rows + 2, case.outputs), torch.nan, dtype=case.dtype, device=device)
        block_product(form, states, data, bias, room[1:-1], case.tile, case.splits, scratch)
        results.append(room[1:-1])
        if not room[[0, -1]].isnan().all():
            return Check(name, float("nan"), 0.0, "wrote beside its output")
    if not torch.equal(*results) or scratch.counters.any():
        return Check(name, float("nan"), 0.0, "differs when done again")
    return Check(name, sum_error(results[0], states, unpack(form, data), bias), LIMITS[case.dtype])


def scratch_for(case: Case, device: str) -> Scratch:
    """Room for a case, with traps in it."""
    along_rows, along_outputs = case.tile.count(case.rows, case.outputs)
    tiles = along_rows * along_outputs
    cells = tiles * case.splits * case.tile.outputs * case.tile.rows
    scratch = Scratch.of(cells, tiles, torch.device(device))
    scratch.partial.fill_(torch.nan)
    return scratch


def sum_error(
    got: torch.Tensor, states: torch.Tensor, numbers: torch.Tensor, bias: torch.Tensor | None
) -> float:
    """The largest error of a product, relative to the sum of its terms' sizes."""
    left, right = states.double(), numbers.double()
    expected, size = left @ right.T, left.abs() @ right.abs().T
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    return float(((got.double() - expected).abs() / size).max())


def guarded_blocks(form: WeightFormat, rows: int, columns: int, seed: int) -> torch.Tensor:
    """uint8 [rows, bytes of columns]; before and behind it scales are NaN."""
    wide = torch.full((rows + 2 * _GUARD_ROWS, form.row_bytes(columns)), _NAN_BYTE).byte()
    data = wide[_GUARD_ROWS:-_GUARD_ROWS]
    data.copy_(torch.from_numpy(random_blocks(form.name, rows, columns, seed)))
    return data


def _columns(form: WeightFormat, blocks: int) -> int:
    """Blocks by number, fewer of long ones."""
    return form.block_len * (blocks if form.block_len < 256 else -(-blocks // 4))


def _rounded(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in a type; Triton's interpreter cuts bfloat16 off where it should round."""
    if dtype == BF16 and triton.knobs.runtime.interpret:
        return (numbers.view(torch.int32) >> 16).short().view(BF16)
    return numbers.to(dtype)


def _different(got: torch.Tensor, expected: torch.Tensor) -> int:
    """Numbers that have other bits."""
    kind = torch.int32 if got.dtype == FP32 else torch.int16
    return int((got.view(kind) != expected.view(kind)).sum())

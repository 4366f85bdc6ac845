"""Matrix products of few rows, in every way that may be chosen, against float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.candidates import DeviceRoom, candidates, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.product_implementations import Implementation, Strips, Tiles
from daemon.engine.cuda.products import Product, choose_products
from daemon.engine.cuda.triton.skinny import Scratch, Strip, Tile, strip_product, tiled_product

FP16, BF16 = torch.float16, torch.bfloat16
_LIMITS = {FP16: 1e-3, BF16: 2.5e-3}

SHAPES_8B = ((6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096))
"""out_features, in_features of Llama 3 8B."""
_ROUNDS = 50
_LAST = 100
ROWS = (1, 2, 3, 4, 7, 8, 16, 17, 32, 48, 64, 96, 128, 200, 256)


@dataclass(frozen=True, slots=True)
class Case:
    """A product; `splits` 0: by strips, which need a tile's rows, outputs and warps only."""

    rows: int
    out_features: int
    in_features: int
    tile: Tile
    splits: int
    dtype: torch.dtype = BF16
    bias: bool = False

    def __str__(self) -> str:
        kind = f"{self.tile.outputs}x{self.tile.rows}"
        kind += f"x{self.tile.depth} /{self.splits}" if self.splits else " strips"
        name = f"{self.rows} x {self.in_features} x {self.out_features} in {kind}"
        return f"{name} {str(self.dtype).removeprefix('torch.')}{' + bias' if self.bias else ''}"


def _small() -> Iterator[Case]:
    """Ragged in every way, and small enough for the interpreter."""
    for rows, padded, outputs in ((1, 1, 2), (2, 2, 1), (3, 4, 2), (4, 4, 4)):
        yield Case(rows, 9, 128, Tile(padded, outputs, 0, 4, 1), 0)
        yield Case(rows, 8, 100, Tile(padded, outputs, 0, 4, 1), 0, FP16, bias=True)
    tile, wide = Tile(16, 16, 32, 4, 3), Tile(32, 64, 16, 4, 2)
    yield Case(1, 16, 64, tile, 1)
    yield Case(5, 21, 96, tile, 3, bias=True)
    yield Case(16, 40, 100, tile, 2, FP16)
    yield Case(20, 33, 70, tile, 1, FP16, bias=True)
    yield Case(9, 20, 64, tile, 8)  # of which six have nothing to add
    yield Case(40, 70, 48, wide, 2, bias=True)
    yield Case(32, 64, 33, wide, 1)


SMALL = tuple(_small())


def product_checks(device: str) -> Iterator[Check]:
    """Each kernel alone, then products as they are chosen; on a GPU at a model's own shapes too."""
    for seed, case in enumerate(SMALL):
        yield _check(case, device, seed)
    if device.startswith("cuda"):
        for shape in SHAPES_8B:
            yield from _check_ways(*shape, BF16, ROWS, device)
        yield from _check_ways(4096, 4096, FP16, (1, 16, 64), device)
        yield from _check_ways(5000, 2064, BF16, (1, 3, 20, 130), device)
        yield from _check_ways(15_360, 5120, FP16, (1, 8, 64, 256), device, bias=True)
        yield from _check_chosen(((6144, 4096), (4096, 14_336)), (1, 4, 16, 64, 128), device)
        yield from _check_early((4096, 4096), (1, 4, 16, 64), device)
        yield from _check_far(600_000, 4096, device)


def _check(case: Case, device: str, seed: int) -> Check:
    """One kernel: right, the same twice, nothing read or written beside, counters back at 0."""
    states, weight, bias = _operands(case, device, seed)
    tiles = 1
    for count in case.tile.count(case.rows, case.out_features):
        tiles *= count
    cells = tiles * max(case.splits, 1) * case.tile.outputs * case.tile.rows
    scratch = Scratch.of(cells, tiles, torch.device(device))
    scratch.partial.fill_(torch.nan)
    results = []
    for _ in range(2):
        guarded = _guarded(case.rows, case.out_features, case.dtype, device)
        out = guarded[1:-1]
        if case.splits:
            tiled_product(states, weight, bias, out, case.tile, case.splits, scratch)
        else:
            strip = Strip(case.tile.rows, case.tile.outputs, case.tile.warps)
            strip_product(states, weight, bias, out, strip)
        results.append(out)
        if not guarded[0].isnan().all() or not guarded[-1].isnan().all():
            return Check(f"product {case}", float("nan"), 0.0, "wrote beside its output")
    if not torch.equal(*results) or scratch.counters.any():
        return Check(f"product {case}", float("nan"), 0.0, "differs when done again")
    error = relative_error(results[0], states, weight, bias)
    return Check(f"product {case}", error, limit(case.dtype))


def _check_ways(
    out_features: int,
    in_features: int,
    dtype: torch.dtype,
    rows: Sequence[int],
    device: str,
    bias: bool = False,
) -> Iterator[Check]:
    """Each of our candidates at one shape; the worst of each number of rows."""
    product = _product(out_features, in_features, dtype, device, bias)
    operands = product.weight, product.bias
    scratch, room = new_scratch(torch.device(device)), DeviceRoom.of(torch.device(device))
    compile_all([product], rows, room, scratch)
    for count in rows:
        states = torch.randn(count, in_features, dtype=dtype, device=device)
        worst, worst_name = 0.0, ""
        ways = _ours(candidates(count, out_features, in_features, room, scratch))
        for way in ways:
            got = way(states, *operands)
            error = relative_error(got, states, *operands)
            if not torch.equal(got, way(states, *operands)):
                error = float("nan")
            if not error <= worst:
                worst, worst_name = error, way.name
        name = f"product {count} x {in_features} x {out_features}, {len(ways)} ways"
        note = f"{worst_name}, {str(dtype).removeprefix('torch.')}"
        yield Check(name, worst, limit(dtype), note)
    yield Check(f"product {in_features} x {out_features}, counters", int(scratch.counters.sum()), 0)


def _check_chosen(
    shapes: Sequence[tuple[int, int]], rows: Sequence[int], device: str
) -> Iterator[Check]:
    """Products as chosen here, eager and as a CUDA graph, at rows between the measured ones too."""
    products = [_product(*shape, BF16, device) for shape in shapes for _ in range(2)]
    choose_products(products, rows)
    for product in products[::2]:
        name = f"{product.in_features} x {product.out_features}"
        for count in (0, 1, 3, 4, 11, 16, 50, 64, 100, 128, 129):
            states = torch.randn(count, product.in_features, dtype=BF16, device=device)
            error = relative_error(product(states), states, product.weight, None)
            # The library may add parts of sums in bfloat16.
            yield Check(f"product as chosen {count} x {name}", error, 4 * limit(BF16))
        yield Check(f"product captured {name}", _captured_wrong(product, rows, device), 0)


def _check_early(shape: tuple[int, int], rows: Sequence[int], device: str) -> Iterator[Check]:
    """Products that begin before their states are there: those of the round before lie there.

    Each round's states come from a kernel that lets the product begin at once, in the same place.
    """
    place = torch.device(device)
    product, room, scratch = (
        _product(*shape, BF16, device),
        DeviceRoom.of(place),
        new_scratch(place),
    )
    ones = torch.ones(shape[1], dtype=BF16, device=device)
    for count in rows:
        states = torch.randn(_ROUNDS, count, shape[1], dtype=BF16, device=device)
        normed = torch.empty_like(states[0])
        expected = [
            product(kernels.add_norm(one, None, ones, 1e-5, out=normed)).clone() for one in states
        ]
        wrong = 0
        for way in candidates(count, *shape, room, scratch):
            got = [
                way(kernels.add_norm(one, None, ones, 1e-5, out=normed), product.weight, None)
                for one in states
            ]
            wrong += sum(not _near(*pair) for pair in zip(got, expected, strict=True))
        yield Check(f"product early {count} x {shape[1]} x {shape[0]}", wrong, 0, "rounds")


def _check_far(out_features: int, in_features: int, device: str) -> Iterator[Check]:
    """The last outputs of a weight of more than 2 ** 31 numbers (5 GB of GPU memory)."""
    place = torch.device(device)
    weight = torch.zeros(out_features, in_features, dtype=BF16, device=device)
    last = weight[-_LAST:].normal_()
    room, scratch = DeviceRoom.of(place), new_scratch(place)
    for count in (1, 16, 128):
        states = torch.randn(count, in_features, dtype=BF16, device=device)
        worst = 0.0
        for way in _ours(candidates(count, out_features, in_features, room, scratch)):
            error = relative_error(way(states, weight, None)[:, -_LAST:], states, last, None)
            worst = error if not error <= worst else worst
        yield Check(f"product far {count} x {in_features} x {out_features}", worst, limit(BF16))


def _near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two ways to compute differ by their last places only."""
    difference = (got.float() - expected.float()).abs().max()
    return bool(difference <= 0.01 * expected.float().abs().max())


def _captured_wrong(product: Product, rows: Sequence[int], device: str) -> int:
    """Numbers of rows that a replayed graph computes otherwise than calls made one by one."""
    wrong = 0
    for count in rows:
        states = torch.randn(count, product.in_features, dtype=BF16, device=device)
        product(states)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = product(states)
        states.normal_()
        captured.fill_(torch.nan)
        graph.replay()
        wrong += not _near(captured, product(states))
    return wrong


def relative_error(
    got: torch.Tensor, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> float:
    """The largest error; relative, or where terms cancel, to the size that a sum usually has."""
    if not got.numel():
        return 0.0
    expected = states.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    usual = weight.shape[1] ** 0.5
    return float(((got.double() - expected).abs() / expected.abs().clamp(min=usual)).max())


def _ours(ways: Sequence[Implementation]) -> list[Strips | Tiles]:
    return [way for way in ways if isinstance(way, Strips | Tiles)]


def limit(dtype: torch.dtype) -> float:
    """Half a unit of the last place, and what sums of float32 over thousands of terms lose.

    Triton's interpreter cuts bfloat16 off where it should round.
    """
    cut_off = dtype == BF16 and triton.knobs.runtime.interpret
    return 8e-3 if cut_off else _LIMITS[dtype]


def _operands(
    case: Case, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Random operands with NaN around them, so that a read beside them shows."""
    made = torch.Generator().manual_seed(seed)
    found = []
    for rows in (case.rows, case.out_features):
        guarded = _guarded(rows, case.in_features, case.dtype, device)
        guarded[1:-1] = torch.randn(rows, case.in_features, generator=made).to(case.dtype)
        found.append(guarded[1:-1])
    bias = torch.randn(case.out_features, generator=made).to(device, case.dtype)
    return found[0], found[1], bias if case.bias else None


def _guarded(rows: int, width: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Rows of NaN, and one before and after."""
    return torch.full((rows + 2, width), torch.nan, dtype=dtype, device=device)


def _product(
    out_features: int, in_features: int, dtype: torch.dtype, device: str, bias: bool = False
) -> Product:
    weight = torch.randn(out_features, in_features, dtype=dtype, device=device)
    added = torch.randn(out_features, dtype=dtype, device=device) if bias else None
    parameter = None if added is None else torch.nn.Parameter(added, requires_grad=False)
    return Product(torch.nn.Parameter(weight, requires_grad=False), parameter)

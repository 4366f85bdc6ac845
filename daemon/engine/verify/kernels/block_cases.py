"""Quantised weights against plain torch: their numbers, and products with them."""

import torch

from daemon.engine.cuda.block_implementations import UnpackedBlocks, new_panel
from daemon.engine.cuda.candidates import DeviceRoom, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.meter import CudaMeter
from daemon.engine.cuda.quantised import BlockProduct
from daemon.engine.cuda.triton.blocks import unpack_rows
from daemon.engine.cuda.triton.tiles import power_of_2
from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import equal
from daemon.engine.verify.kernels.product_cases import INTERPRETED, MOST_OUTPUTS
from daemon.models.formats import FORMATS

_ROWS = 37
_SOUND = 0x37
"""Bits of every byte with which no scale is large, infinite or no number."""
_NEAR_ONE = 0x70
"""Bits of exponents of two with which float16 has the numbers."""
_INTERPRETED_ROWS = 2


def try_blocks(bench: Bench) -> None:
    """Try products with every format of the subject, as those of plain weights are tried."""
    for name, columns in sorted({(name, columns) for name, _, columns in bench.subject.quantised}):
        _try_numbers(bench, name, columns)
    weights = [random_weight(bench, *shape) for shape in bench.subject.quantised]
    if not weights:
        return
    library = UnpackedBlocks(new_panel(weights, bench.dtype))
    products = [BlockProduct(weight, None, bench.dtype, library) for weight in weights]
    on_gpu = bench.device.type == "cuda"
    room = DeviceRoom.of(bench.device) if on_gpu else INTERPRETED
    most = min(BlockProduct.max_rows, bench.subject.most_rows) if on_gpu else _INTERPRETED_ROWS
    rows = sorted({power_of_2(count) for count in range(1, most + 1)})
    scratch, meter = new_scratch(bench.device), CudaMeter()
    if on_gpu:
        compile_all(products, rows, room, scratch)
    for product in products:
        for count in rows:
            states = bench.normal(count, product.in_features)
            for way in product.candidates(count, room, scratch):
                meter.usable(way, states, product.held, None, library)


def _try_numbers(bench: Bench, name: str, columns: int) -> None:
    """Try all bytes, with scales that are NaN among them."""
    form = FORMATS[name]
    data = _bytes(bench, _ROWS, form.row_bytes(columns))
    expected = unpack(form, data)
    for dtype in (torch.float32, bench.dtype):
        found = torch.empty(_ROWS, columns, dtype=dtype, device=bench.device)
        unpack_rows(form, data, found)
        _equal(f"numbers of {name} as {dtype}", found, expected.to(dtype))
    rows = bench.column([_ROWS - 1, 0, _ROWS - 1, 5], torch.int64)
    found = torch.empty(len(rows), columns, device=bench.device)
    _equal(f"some rows of {name}", unpack_rows(form, data, found, rows), expected[rows])


def _equal(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    equal(f"{what}, which are none", found.isnan(), expected.isnan())
    equal(what, found.nan_to_num(0.0), expected.nan_to_num(0.0))


def random_weight(bench: Bench, name: str, rows: int, columns: int) -> QuantisedWeight:
    """A weight of random bytes, whose numbers are sound."""
    form, outputs = FORMATS[name], min(rows, MOST_OUTPUTS + rows % 16)
    data = _bytes(bench, outputs, form.row_bytes(columns)) & _SOUND
    if name == "MXFP4":
        data.view(-1, form.block_bytes)[:, 0] |= _NEAR_ONE
    return QuantisedWeight(form, data, columns)


def _bytes(bench: Bench, rows: int, row_bytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, device=bench.device)

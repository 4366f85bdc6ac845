"""Products in every way that may be chosen, against torch's library."""

import torch

from daemon.engine.cuda.candidates import LIBRARY, MAX_ROWS, DeviceRoom, candidates, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.meter import CudaMeter
from daemon.engine.cuda.products import Product
from daemon.engine.cuda.triton.tiles import power_of_2
from daemon.engine.verify.kernels.bench import Bench

MOST_OUTPUTS = 32_768
"""A vocabulary's own width is no other kernel, and would take a gigabyte."""
INTERPRETED = DeviceRoom(processors=4, shared_bytes=99 << 10)
_INTERPRETED_ROWS = 2


def try_products(bench: Bench) -> None:
    """Try products for faults and endless kernels, which would end the process that measures.

    Implementations that are wrong or do not compile are left out by that measurement, which
    compares the same.
    """
    on_gpu = bench.device.type == "cuda"
    room = DeviceRoom.of(bench.device) if on_gpu else INTERPRETED
    most = min(MAX_ROWS, bench.subject.most_rows) if on_gpu else _INTERPRETED_ROWS
    rows = sorted({power_of_2(count) for count in range(1, most + 1)})
    scratch, meter = new_scratch(bench.device), CudaMeter()
    products = [_product(bench, *shape) for shape in _shapes(bench)]
    if on_gpu:
        compile_all(products, rows, room, scratch)
    for product in products:
        for count in rows:
            states = bench.normal(count, product.in_features)
            for way in candidates(count, product.out_features, product.in_features, room, scratch):
                if way != LIBRARY:
                    meter.usable(way, states, product.weight, product.bias)


def _shapes(bench: Bench) -> list[tuple[int, int, bool]]:
    """Shapes that kernels of ours may compute, no wider than necessary."""
    if bench.dtype not in (torch.float16, torch.bfloat16):
        return []
    found = set()
    for out_features, in_features, bias in bench.subject.products:
        narrowed = min(out_features, MOST_OUTPUTS + out_features % 16)
        found.add((narrowed, in_features, bias))
    return sorted(found)


def _product(bench: Bench, out_features: int, in_features: int, bias: bool) -> Product:
    weight = torch.empty(out_features, in_features, dtype=bench.dtype, device=bench.device)
    weight.normal_(0.0, in_features**-0.5)
    added = torch.nn.Parameter(bench.normal(out_features), False) if bias else None
    return Product(torch.nn.Parameter(weight, False), added)

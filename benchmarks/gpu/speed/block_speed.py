"""How near products over quantised weights come to the device's limits, in every way there is."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.limits import Limits
from benchmarks.gpu.speed.product_speed import meter_on, product_figure, room_of
from benchmarks.gpu.timing import host_seconds
from daemon.engine.cuda.block_implementations import UnpackedBlocks, new_panel
from daemon.engine.cuda.candidates import new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.products import choose_products
from daemon.engine.cuda.quantised import BlockProduct
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS

_SOUND = 0x37
"""Bits of every byte with which no scale is large, infinite or no number."""
_WEIGHTS_BYTES = 256 << 20
"""Of each shape: enough for several layers, so that none is found in the device's cache."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    formats: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]  # out_features, in_features
    rows: tuple[int, ...]


FULL = Sizes(
    ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "int4/128", "fp8/128"),
    ((4096, 4096), (28_672, 4096), (4096, 14_336)),
    (1, 4, 16, 64),
)
TINY = Sizes(("Q4_K",), ((24, 256),), (1, 16))


def block_figures(device: str, tiny: bool, limits: Limits) -> Iterator[Figure]:
    """What was chosen for each format, shape and number of rows, beside unpacking and cuBLAS."""
    sizes, place = TINY if tiny else FULL, torch.device(device)
    room, meter = room_of(place), meter_on(place)
    for name in sizes.formats:
        groups = [_layers(name, shape, place, tiny) for shape in sizes.shapes]
        if place.type == "cuda":
            firsts = [group[0] for group in groups]
            compile_all(firsts, sizes.rows, room, new_scratch(place))
        with torch.inference_mode():
            everything = [product for group in groups for product in group]
            choose = partial(choose_products, everything, sizes.rows, meter, room)
            choose_s = host_seconds(choose)
            yield Figure(f"choose_products of {name}, kernels compiled", choose_s, "s")
            for group in groups:
                for rows in sizes.rows:
                    yield product_figure(group, rows, meter, room, limits)


def _layers(
    name: str, shape: tuple[int, int], place: torch.device, tiny: bool
) -> list[BlockProduct]:
    """As many layers of a shape as a measurement takes in turns, with random weights."""
    form, (outputs, columns) = FORMATS[name], shape
    size_bytes = outputs * form.row_bytes(columns)
    count = 2 if tiny else min(16, -(-_WEIGHTS_BYTES // size_bytes))
    bytes_of = (count, outputs, form.row_bytes(columns))
    data = torch.randint(0, 256, bytes_of, dtype=torch.uint8, device=place) & _SOUND
    weights = [QuantisedWeight(form, one, columns) for one in data]
    library = UnpackedBlocks(new_panel(weights, torch.bfloat16))
    return [BlockProduct(weight, None, torch.bfloat16, library) for weight in weights]

"""Kernels over quantised weights build for GPUs that need not be there, fit them, and only once."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda.block_implementations import MultipliedBlocks, UnpackedBlocks
from daemon.engine.cuda.candidates import DeviceRoom, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.quantised import BlockProduct
from daemon.engine.cuda.triton.blocks import unpack_rows
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import CPU_ONLY, FORMATS, WeightFormat
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launch_checks import compiled_checks
from tests.gpu.compiled.launches import Launches, compiled_for
from tests.gpu.compiled.product_compile_checks import PROCESSORS

BF16, FP32 = torch.bfloat16, torch.float32
SHAPE = (28_672, 4096)
IN_BLOCKS = tuple(
    name for name, form in FORMATS.items() if form.block_len > 1 and form.name not in CPU_ONLY
)
ROWS = (1, 2, 4, 16, 32, 64)
_META = torch.device("meta")


def block_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    names: tuple[str, ...] = IN_BLOCKS,
    rows: tuple[int, ...] = ROWS,
) -> Iterator[Check]:
    """Shared memory in bytes, and what a step would compile anew."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                for name in names:
                    yield from _unpacked(FORMATS[name], generation, launches)
                    yield from _multiplied(FORMATS[name], generation, rows, launches)


def _unpacked(form: WeightFormat, generation: int, launches: Launches) -> Iterator[Check]:
    """Whole weights and panels of them, and rows that are looked up."""
    data = _meta(SHAPE[0], form.row_bytes(SHAPE[1]))
    for dtype, picks in ((BF16, False), (FP32, True)):
        for count in (1, 5, 16, 8192):
            rows = torch.empty(count, dtype=torch.int64, device=_META) if picks else None
            out = torch.empty(count, SHAPE[1], dtype=dtype, device=_META)
            unpack_rows(form, data if picks else data[:count], out, rows)
        yield from compiled_checks(
            f"blocks unpacked {form.name} {dtype}", generation, launches.take()
        )


def _multiplied(
    form: WeightFormat, generation: int, rows: tuple[int, ...], launches: Launches
) -> Iterator[Check]:
    """Each tile, as the candidates have it."""
    weight = QuantisedWeight(form, _meta(SHAPE[0], form.row_bytes(SHAPE[1])), SHAPE[1])
    room = DeviceRoom(PROCESSORS[generation], SHARED_LIMITS_BYTES[generation])
    scratch, library = new_scratch(_META), UnpackedBlocks(_meta(16))
    product = BlockProduct(weight, None, BF16, library)
    compile_all([product], rows, room, scratch)
    ahead = {promised.result().hash for promised in launches.take()}
    used: dict[str, list[Any]] = {}
    for count in rows:
        for way in product.candidates(count, room, scratch):
            if isinstance(way, MultipliedBlocks):
                for fewer in {count, max(1, count - 1)}:
                    way(product.new_states(fewer), weight, None)
                made = launches.take()
                used.setdefault(f"{form.name} {way.tile}", []).extend(made)
    for name, made in used.items():
        yield from compiled_checks(f"blocks multiplied {name}", generation, made)
    anew = {one.hash for made in used.values() for one in made} - ahead
    yield Check(f"sm_{generation} blocks {form.name} anew", len(anew), 0, "kernels")


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.uint8, device=_META)

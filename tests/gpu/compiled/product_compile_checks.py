"""The products' kernels build for GPUs that need not be there, fit them, and are all made ahead."""

import tempfile
from collections.abc import Iterator

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda.candidates import DeviceRoom, candidates, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.product_implementations import Strips, Tiles
from daemon.engine.cuda.products import Product
from daemon.engine.cuda.triton.early import early
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launches import Launches, compiled_for
from tests.gpu.product_checks import SHAPES_8B

_FEW_BYTES = 1024
"""A strip's programs only add up there what their warps found."""
PROCESSORS = {80: 108, 86: 84, 89: 142, 90: 132}
"""The processors of a large GPU of each generation."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


def product_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    shapes: tuple[tuple[int, int], ...] = SHAPES_8B,
    rows: tuple[int, ...] = ROWS,
) -> Iterator[Check]:
    """Shared memory in bytes of each candidate against what `Tile` says of it (which decides
    whether it is tried), and what a step would compile anew or begin too early."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                room = DeviceRoom(PROCESSORS[generation], SHARED_LIMITS_BYTES[generation], early())
                yield from _checks(generation, shapes, rows, room, launches)


def _checks(
    generation: int,
    shapes: tuple[tuple[int, int], ...],
    rows: tuple[int, ...],
    room: DeviceRoom,
    launches: Launches,
) -> Iterator[Check]:
    meta = torch.device("meta")
    scratch = new_scratch(meta)
    weights = [torch.empty(shape, dtype=torch.bfloat16, device=meta) for shape in shapes]
    products = [Product(torch.nn.Parameter(one, requires_grad=False), None) for one in weights]
    compile_all(products, rows, room, scratch)
    # What was compiled in a thread stands as a promise of a kernel.
    ahead = {promised.result().hash for promised in launches.take()}
    used: dict[str, tuple[int, int]] = {}
    anew = hasty = 0
    for weight in weights:
        for most in rows:
            for way in candidates(most, *weight.shape, room, scratch):
                if isinstance(way, Strips | Tiles):
                    # A way serves smaller numbers of rows than the one that it was measured at.
                    for count in {most, max(1, most - 1)}:
                        way(torch.empty_like(weight[:1].expand(count, -1)), weight, None)
                    made = launches.take()
                    anew += sum(kernel.hash not in ahead for kernel in made)
                    hasty += sum(_is_hasty(kernel.asm["ptx"], room.early) for kernel in made)
                    shared = max(kernel.metadata.shared for kernel in made)
                    promised = way.tile.shared_bytes if isinstance(way, Tiles) else _FEW_BYTES
                    used[way.name] = shared, promised
    for name, (shared, promised) in used.items():
        yield Check(f"sm_{generation} {name}", shared, promised, "bytes")
    yield Check(f"sm_{generation} products anew", anew, 0, "kernels")
    yield Check(f"sm_{generation} products hasty", hasty, 0, "kernels")


def _is_hasty(ptx: str, early: bool) -> bool:
    """Whether a kernel touches anything but weights before it has waited for the one in front."""
    before, *behind = ptx.split("griddepcontrol.wait")
    if not early:
        return bool(behind)
    loads = [line for line in before.splitlines() if "ld.global" in line]
    touched = any(word in before for word in ("st.global", "cp.async", "atom.", "red."))
    return len(behind) != 1 or touched or not all("evict_first" in load for load in loads)

"""Grouped products of experts build for GPUs that need not be there, fit them, and only once."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda.triton.expert_products import BlockStack, grouped_product
from daemon.engine.cuda.triton.expert_sums import clamped_mul, summed_shares
from daemon.engine.cuda.triton.expert_tiles import TILE_ROWS, ExpertTiles, sorted_tiles
from daemon.models.formats import FORMATS
from tests.gpu.compiled.block_compile_checks import IN_BLOCKS
from tests.gpu.compiled.launch_checks import compiled_checks
from tests.gpu.compiled.launches import Launches, compiled_for

EXPERTS, CHOSEN, ROWS, COLUMNS = 128, 8, 1536, 2048
_META = torch.device("meta")
_TOKENS = (2, 3, 16, 40)


def expert_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90), names: tuple[str, ...] = IN_BLOCKS
) -> Iterator[Check]:
    """Shared memory in bytes, and what a step of other tokens would compile anew."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                yield from _small(generation, launches)
                for name in names:
                    addresses = torch.empty(EXPERTS, dtype=torch.int64, device=_META)
                    stack = BlockStack(FORMATS[name], addresses, ROWS, COLUMNS)
                    yield from _grouped(name, stack, generation, launches)


def _small(generation: int, launches: Launches) -> Iterator[Check]:
    """Tiles, gates and sums."""
    for rows in TILE_ROWS:
        made = []
        for tokens in _TOKENS:
            sorted_tiles(_chosen(tokens), EXPERTS, rows)
            made.append(launches.take())
        for name, kernels in zip(("count", "sort"), zip(*made, strict=True), strict=True):
            yield from compiled_checks(f"expert tiles by {rows}, {name}", generation, list(kernels))
    for tokens in _TOKENS:
        wide = torch.empty(tokens * CHOSEN, ROWS, dtype=torch.bfloat16, device=_META)
        clamped_mul(wide, 7.0, 1.702, True)
    yield from compiled_checks("clamped gates", generation, launches.take())
    for tokens in _TOKENS:
        made_of = torch.empty(tokens * CHOSEN, COLUMNS, dtype=torch.bfloat16, device=_META)
        summed_shares(made_of, torch.empty(tokens, CHOSEN, device=_META))
    yield from compiled_checks("summed shares", generation, launches.take())


def _grouped(name: str, stack: BlockStack, generation: int, launches: Launches) -> Iterator[Check]:
    """Each height of tiles, of tokens' rows and of pairs' own."""
    for rows in (1, *TILE_ROWS):
        kernels: list[Any] = []
        for tokens in _TOKENS:
            chosen = _chosen(tokens)
            tiles = ExpertTiles(None, chosen.view(-1), 1, chosen.numel())
            if rows > 1:
                tiles = sorted_tiles(chosen, EXPERTS, rows)
            launches.take()
            out = torch.empty(chosen.numel(), stack.rows, dtype=torch.bfloat16, device=_META)
            for count in (tokens, chosen.numel()):
                states = torch.empty(count, stack.columns, dtype=torch.bfloat16, device=_META)
                grouped_product(stack, states, tiles, None, out)
            kernels += launches.take()
        yield from compiled_checks(f"grouped {name} by {rows}", generation, kernels)


def _chosen(tokens: int) -> torch.Tensor:
    return torch.empty(tokens, CHOSEN, dtype=torch.int64, device=_META)

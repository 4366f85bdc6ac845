"""Paged KV caches with traps: every cell that a kernel must not read is NaN."""

from dataclasses import dataclass

import torch

from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import AttentionVariant

LAYERS, LAYER = 2, 1
QUANTA_OF_ONE = {torch.int8: 40.0, torch.float8_e4m3fn: 64.0}
"""The quanta of a 1, such that a normal distribution fits their range."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads, sizes and lengths of one attention case; row b has `starts[b] + counts[b]` tokens."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    kv_dtype: torch.dtype | None = None
    window: int = 0
    cap: float = 0.0
    sinks: bool = False

    def __str__(self) -> str:
        kinds = [kind for kind in (self.dtype, self.kv_dtype) if kind is not None]
        dtype = "/".join(str(kind).removeprefix("torch.") for kind in kinds)
        sizes = f"{self.heads}/{self.kv_heads}x{self.head_dim} block {self.block_size} {dtype}"
        if len(self.starts) <= 4:
            rows = " ".join(f"{s}+{c}" for s, c in zip(self.starts, self.counts, strict=True))
        else:
            rows = f"{len(self.starts)} rows to {max(self.lengths)}"
        kinds = [f"window {self.window}"] * (self.window > 0) + [f"cap {self.cap:g}"] * (
            self.cap > 0
        )
        kinds += ["sinks"] * self.sinks
        return " ".join([f"{sizes} [{rows}]", *kinds])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each row."""
        return tuple(s + c for s, c in zip(self.starts, self.counts, strict=True))

    @property
    def scale(self) -> float:
        """The softmax scale of a head of this size."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Paged:
    """A cache, its tables and queries, all on one device; see `daemon.engine.cuda.triton`."""

    kv_cache: torch.Tensor
    kv_scales: torch.Tensor | None
    block_tables: torch.Tensor
    query: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    lengths: torch.Tensor
    row_offsets: torch.Tensor
    variant: AttentionVariant


def paged(shape: Shape, device: str, seed: int = 0, spare_tokens: int = 0) -> Paged:
    """Random keys, values and queries in scattered blocks; `spare_tokens` queries of no row.

    Blocks of no row, other layers, and cells past a row's last token or in front of its window are
    NaN, or their scales are.
    Table entries past a row's last block name a block of NaN.
    """
    chance = torch.Generator(device).manual_seed(seed)
    tables, live, gone = _tables(shape, torch.Generator().manual_seed(seed))
    cache = PagedKV(
        len(live),
        LAYERS,
        shape.block_size,
        shape.kv_heads,
        shape.head_dim,
        shape.dtype,
        torch.device(device),
        shape.kv_dtype,
    )
    offsets_in = torch.arange(shape.block_size, device=device)
    written = offsets_in < live.to(device).unsqueeze(1)
    written &= offsets_in >= gone.to(device).unsqueeze(1)
    _fill(cache, written, chance)
    tokens = sum(shape.counts) + spare_tokens
    # As a slice of a merged projection would be: rows are not contiguous.
    sides = (tokens, shape.heads + 2, shape.head_dim)
    wide = torch.randn(sides, generator=chance, device=device).to(shape.dtype)

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    offsets = [sum(shape.counts[:row]) for row in range(len(shape.counts) + 1)]
    return Paged(
        cache.blocks,
        cache.scales,
        tables.to(device),
        wide[:, : shape.heads],
        column(list(shape.starts)),
        column(list(shape.counts)),
        column(list(shape.lengths)),
        column(offsets),
        AttentionVariant(shape.window, shape.cap, _sinks(shape, device, chance)),
    )


def _sinks(shape: Shape, device: str, chance: torch.Generator) -> torch.Tensor | None:
    if not shape.sinks:
        return None
    return 3 * torch.randn(shape.heads, generator=chance, device=device).to(shape.dtype)


def _tables(
    shape: Shape, chance: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block tables int32 [B, max_blocks]; the tokens that lie in each block int64 [block], and how
    many of them lie in front of their row's window.
    """
    counts = [-(-length // shape.block_size) for length in shape.lengths]
    order = (torch.randperm(sum(counts), generator=chance) + 1).to(torch.int32)
    tables = torch.zeros(len(counts), max([*counts, 0]) + 2, dtype=torch.int32)
    live, gone = torch.zeros(2, sum(counts) + 1, dtype=torch.int64)
    first = 0
    for row, (count, length) in enumerate(zip(counts, shape.lengths, strict=True)):
        mine = order[first : first + count]
        tables[row, :count] = mine
        begins = torch.arange(count) * shape.block_size
        live[mine.long()] = (length - begins).clamp(max=shape.block_size)
        if shape.window:
            gone[mine.long()] = (shape.starts[row] + 1 - shape.window - begins).clamp(min=0)
        first += count
    return tables, live, gone


def _fill(cache: PagedKV, written: torch.Tensor, chance: torch.Generator) -> None:
    """Numbers of a normal distribution where `written` [block, block_size], else NaN."""
    layer = cache.blocks[:, LAYER]
    cells = torch.randn(layer.shape, generator=chance, device=layer.device)
    there = written[:, None, :, None]
    if cache.scales is None:
        cache.blocks.fill_(torch.nan)
        layer.copy_(cells.masked_fill_(~there.unsqueeze(-1), torch.nan))
        return
    one = QUANTA_OF_ONE[cache.blocks.dtype]
    # Whole numbers: to int8 they go as they are; an 8-bit float rounds them once.
    layer.copy_((cells * one).round_().clamp_(-127, 127))
    cache.scales.fill_(torch.nan)
    sizes = torch.rand(layer.shape[:-1], generator=chance, device=layer.device)
    cache.scales[:, LAYER] = ((0.5 + sizes) / one).masked_fill_(~there, torch.nan)

"""Paged KV caches with traps: every cell that a kernel must not read is NaN."""

from dataclasses import dataclass

import torch

LAYERS, LAYER = 2, 1


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

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"{self.heads}/{self.kv_heads}x{self.head_dim} block {self.block_size} {dtype}"
        if len(self.starts) <= 4:
            rows = " ".join(f"{s}+{c}" for s, c in zip(self.starts, self.counts, strict=True))
        else:
            rows = f"{len(self.starts)} rows to {max(self.lengths)}"
        return f"{sizes} [{rows}]"

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
    """A cache, its tables and queries, all on one device; see `daemon.engine.kernels`."""

    kv_cache: torch.Tensor
    block_tables: torch.Tensor
    query: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    lengths: torch.Tensor
    row_offsets: torch.Tensor


def paged(shape: Shape, device: str, seed: int = 0, spare_tokens: int = 0) -> Paged:
    """Random keys, values and queries in scattered blocks; `spare_tokens` queries of no row.

    Blocks of no row, other layers, and cells past a row's last token are NaN. Table entries past a
    row's last block name a block of NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-length // shape.block_size) for length in shape.lengths]
    order = (torch.randperm(sum(blocks), generator=generator) + 1).to(torch.int32)
    tables = torch.zeros(len(blocks), max([*blocks, 0]) + 2, dtype=torch.int32)
    size = (sum(blocks) + 1, LAYERS, 2, shape.block_size, shape.kv_heads, shape.head_dim)
    cache = torch.full(size, torch.nan, dtype=shape.dtype)
    for row, length in enumerate(shape.lengths):
        mine = order[sum(blocks[:row]) : sum(blocks[: row + 1])]
        tables[row, : len(mine)] = mine
        for index, block in enumerate(mine.tolist()):
            live = min(shape.block_size, length - index * shape.block_size)
            cells = torch.randn(2, live, *size[4:], generator=generator)
            cache[block, LAYER, :, :live] = cells.to(shape.dtype)
    tokens = sum(shape.counts) + spare_tokens
    # As a slice of a merged projection would be: rows are not contiguous.
    wide = torch.randn(tokens, shape.heads + 2, shape.head_dim, generator=generator)
    query = wide.to(shape.dtype).to(device)[:, : shape.heads]

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    offsets = [sum(shape.counts[:row]) for row in range(len(shape.counts) + 1)]
    return Paged(
        cache.to(device),
        tables.to(device),
        query,
        column(list(shape.starts)),
        column(list(shape.counts)),
        column(list(shape.lengths)),
        column(offsets),
    )

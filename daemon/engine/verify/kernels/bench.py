"""The test bench of a kernel family: the subject's device, and pools with traps on it."""

import torch

from daemon.engine.kv.eight_bit import KV_DTYPES
from daemon.engine.kv.pool import PagedKV
from daemon.engine.verify.kernels.compare import LIMITS
from daemon.engine.verify.kernels.subject import Subject

LAYERS, LAYER = 2, 1
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in LIMITS}
_QUANTA = 40.0
"""Quanta of a stored 1, so that a normal distribution fits the range of every 8-bit type."""


class Bench:
    """A subject with its device, its types and random numbers, the same at every start."""

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self.subject = subject
        self.device = torch.device(subject.device)
        self.dtype = _DTYPES[subject.dtype]
        self.limit = LIMITS[self.dtype]
        self._chance = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Numbers of a normal distribution, of the states' type, on the device."""
        return torch.randn(shape, generator=self._chance).to(self.device, self.dtype)

    def column(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Whole numbers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def pool(self, num_blocks: int) -> PagedKV:
        """A pool of zeros."""
        subject = self.subject
        return PagedKV(
            num_blocks,
            LAYERS,
            subject.block_size,
            subject.num_kv_heads,
            subject.head_dim,
            self.dtype,
            self.device,
            KV_DTYPES[subject.kv_dtype],
            latent=subject.latent,
        )

    def filled(self, lengths: list[int]) -> tuple[PagedKV, torch.Tensor]:
        """A pool that holds `lengths` tokens of each row, and tables int32 [B, max_blocks].

        Blocks are scattered; cells of other layers or behind a row's last token are NaN, or their
        scales are.
        """
        size = self.subject.block_size
        needed = [-(-length // size) for length in lengths]
        cache = self.pool(sum(needed) + 1)
        order = 1 + torch.randperm(sum(needed), generator=self._chance)
        tables = torch.zeros(len(lengths), self.subject.max_blocks, dtype=torch.int32)
        live = torch.zeros(cache.num_blocks, dtype=torch.int64)
        for row, mine in enumerate(order.split(needed)):
            tables[row, : len(mine)] = mine
            live[mine] = (lengths[row] - size * torch.arange(len(mine))).clamp(max=size)
        written = (torch.arange(size) < live.unsqueeze(1)).to(self.device)[:, None, :, None]
        shape = cache.blocks[:, LAYER].shape
        cells = torch.randn(shape, generator=self._chance).to(self.device)
        if cache.scales is None:
            cache.blocks.fill_(torch.nan)
            trapped = cells.masked_fill(~written.unsqueeze(-1), torch.nan)
            cache.blocks[:, LAYER] = trapped.to(self.dtype)
        else:
            # Whole numbers: to int8 they go as they are; an 8-bit float rounds them once.
            quanta = (cells * _QUANTA).round_().clamp_(-127, 127)
            cache.blocks[:, LAYER] = quanta.to(cache.kv_dtype)
            cache.scales.fill_(torch.nan)
            scales = (0.5 + torch.rand(shape[:-1], generator=self._chance)) / _QUANTA
            cache.scales[:, LAYER] = scales.to(self.device).masked_fill_(~written, torch.nan)
        return cache, tables.to(self.device)


def contents(cache: PagedKV) -> torch.Tensor:
    """A pool's contents as numbers: [block, layer, 2, block_size, kv_head, head_dim]."""
    numbers = cache.blocks.float()
    return numbers if cache.scales is None else numbers * cache.scales.unsqueeze(-1)

"""Rows of tokens that follow on states in scattered pages, and how kernels of states find them."""

# Triton code is not typed.
# mypy: disable-error-code="no-untyped-def,misc"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_CELLS = 2048
"""Numbers of a state that one program keeps in the registers of its warp: a row's tokens are walked
one by one, so that warps would wait for each other at every token.
"""


@dataclass(frozen=True, slots=True)
class DeviceStateRows:
    """B rows of tokens, each with the pages of its sequence's state in a pool.

    A row without tokens is padding: its pages are neither read nor written. One that begins its
    sequence has a state of zeros, whatever its pages hold.
    """

    pool: torch.Tensor  # uint8 [pages, bytes]
    pages: torch.Tensor  # int32 [B, pages of a sequence's states]
    starts: torch.Tensor  # int32 [B] tokens before this step
    firsts: torch.Tensor  # int32 [B] index of each row's first token
    counts: torch.Tensor  # int32 [B]
    most: int = 1  # tokens of the longest row, at most

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def columns(self) -> tuple[torch.Tensor, ...]:
        """The columns that a kernel reads of each row."""
        return self.pages, self.starts, self.firsts, self.counts

    def numbers(self, dtype: torch.dtype) -> torch.Tensor:
        """The pool as numbers of a type [pages, numbers]."""
        return self.pool.view(dtype)


def beside(length: int) -> int:
    """How many runs of so many neighbouring numbers, a power of two, a program takes."""
    return max(1, _CELLS // length)


@triton.jit
def row_of(row, starts_ptr, firsts_ptr, counts_ptr):
    """A row's first token, their number, and that of its sequence's tokens before them."""
    count = tl.load(counts_ptr + row)
    first = tl.load(firsts_ptr + row).to(tl.int64)
    return first, count, tl.load(starts_ptr + row)


@triton.jit
def place_of(row, place_ptr, pages_ptr, NUM_PAGES: tl.constexpr, PAGE: tl.constexpr):  # noqa: N803
    """Index of a state's first number in the pool, by its page of the row's and its offset there;
    PAGE is the numbers of a page.
    """
    page = tl.load(pages_ptr + row * NUM_PAGES + tl.load(place_ptr)).to(tl.int64)
    return page * PAGE + tl.load(place_ptr + 1)

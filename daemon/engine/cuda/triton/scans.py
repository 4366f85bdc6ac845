"""The scans of Mamba 1 and 2 over states in their pages: see `daemon.engine.layers.recurrent`.

A program walks through the tokens of one row with some rows of a state.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.rows import row_stride
from daemon.engine.cuda.triton.state_rows import DeviceStateRows, beside, place_of, row_of
from daemon.engine.cuda.triton.tiles import power_of_2


def chunk_scan(
    inputs: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    direct: torch.Tensor | None,
    units: torch.Tensor,
    rows: DeviceStateRows,
) -> torch.Tensor:
    """The scan of Mamba 2: float32 [T, H, P] of the tokens of `rows`; those of no row are not
    written.

    `inputs` [T, H, P], `steps` [T, H], `write` and `read` [T, G, N]: rows may lie apart. `rates`
    and `direct` [H]. `units` int64 [H, 2]: page and offset, in numbers, of each head's matrix.
    """
    num_heads, num_inputs = inputs.shape[1:]
    num_groups, size = write.shape[1:]
    out = inputs.new_empty(inputs.shape, dtype=torch.float32)
    tile = power_of_2(size)
    lines = min(beside(tile), power_of_2(num_inputs))
    pool = rows.numbers(torch.float32)
    if len(rows) and len(inputs):
        _chunk_scan[(num_heads, -(-num_inputs // lines), len(rows))](
            inputs, steps, rates, write, read, rates if direct is None else direct, out, pool,
            units, *rows.columns,
            *(row_stride(part) for part in (inputs, steps, write, read)),
            NUM_PAGES=rows.pages.shape[1], PAGE=pool.shape[1], SHARED=num_heads // num_groups,
            INPUTS=num_inputs, LINES=lines, SIZE=size, TILE=tile, DIRECT=direct is not None,
            num_warps=1, num_stages=1,
        )  # fmt: skip
    return out


@triton.jit
def _chunk_scan(
    inputs_ptr, steps_ptr, rates_ptr, write_ptr, read_ptr, direct_ptr, out_ptr, pool_ptr, units_ptr,
    pages_ptr, starts_ptr, firsts_ptr, counts_ptr,
    inputs_stride, steps_stride, write_stride, read_stride,
    NUM_PAGES: tl.constexpr, PAGE: tl.constexpr, SHARED: tl.constexpr, INPUTS: tl.constexpr,
    LINES: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """LINES rows of one head's state, through the tokens of one row."""
    head, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    first, count, start = row_of(row, starts_ptr, firsts_ptr, counts_ptr)
    if count == 0:
        return
    line, cell = tl.program_id(1) * LINES + tl.arange(0, LINES), tl.arange(0, TILE)
    is_line, is_cell = line < INPUTS, cell < SIZE
    mask = is_line[:, None] & is_cell[None, :]
    cells = pool_ptr + place_of(row, units_ptr + 2 * head, pages_ptr, NUM_PAGES, PAGE)
    cells = cells + line[:, None] * SIZE + cell[None, :]
    held = tl.where(start > 0, SIZE, 0)
    state = tl.load(cells, mask=is_line[:, None] & (cell < held)[None, :], other=0.0)
    rate = tl.load(rates_ptr + head).to(tl.float32)
    of_lines, of_cells = head * INPUTS + line, head // SHARED * SIZE + cell
    for token in range(first, first + count):
        given = tl.load(inputs_ptr + token * inputs_stride + of_lines, mask=is_line, other=0.0)
        write = tl.load(write_ptr + token * write_stride + of_cells, mask=is_cell, other=0.0)
        read = tl.load(read_ptr + token * read_stride + of_cells, mask=is_cell, other=0.0)
        step = tl.load(steps_ptr + token * steps_stride + head).to(tl.float32)
        given = given.to(tl.float32)
        taken = (given * step)[:, None] * write.to(tl.float32)[None, :]
        state = state * tl.exp(step * rate) + taken
        total = tl.sum(state * read.to(tl.float32)[None, :], 1)
        if DIRECT:
            total += given * tl.load(direct_ptr + head).to(tl.float32)
        tl.store(out_ptr + token * tl.num_programs(0) * INPUTS + of_lines, total, mask=is_line)
    tl.store(cells, state, mask=mask)


def channels_at_once(size: int) -> int:
    """Most channels of one program, of so many numbers each."""
    return beside(power_of_2(size))


def selective_scan(
    inputs: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    direct: torch.Tensor | None,
    stretches: torch.Tensor,
    rows: DeviceStateRows,
) -> torch.Tensor:
    """The scan of Mamba 1: float32 [T, C] of the tokens of `rows`; those of no row are not written.

    `inputs` and `steps` [T, C], `write` and `read` [T, N]: rows may lie apart. `rates` [C, N],
    dense, `direct` [C]. `stretches` int64 [S, 5]: first channel, number of channels, at most
    `channels_at_once`, page, offset in numbers, and one that is not read.
    """
    width, size = rates.shape
    out = inputs.new_empty(inputs.shape, dtype=torch.float32)
    pool = rows.numbers(torch.float32)
    if len(rows) and len(inputs):
        _selective_scan[(len(stretches), len(rows))](
            inputs, steps, rates, write, read, rates if direct is None else direct, out, pool,
            stretches, *rows.columns,
            *(row_stride(part) for part in (inputs, steps, write, read)),
            NUM_PAGES=rows.pages.shape[1], PAGE=pool.shape[1], WIDTH=width,
            LINES=channels_at_once(size), SIZE=size, TILE=power_of_2(size),
            DIRECT=direct is not None, num_warps=1, num_stages=1,
        )  # fmt: skip
    return out


@triton.jit
def _selective_scan(
    inputs_ptr, steps_ptr, rates_ptr, write_ptr, read_ptr, direct_ptr, out_ptr, pool_ptr,
    stretches_ptr, pages_ptr, starts_ptr, firsts_ptr, counts_ptr,
    inputs_stride, steps_stride, write_stride, read_stride,
    NUM_PAGES: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    LINES: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """The channels of one stretch, through the tokens of one row."""
    row = tl.program_id(1).to(tl.int64)
    first, count, start = row_of(row, starts_ptr, firsts_ptr, counts_ptr)
    if count == 0:
        return
    stretches_ptr += 5 * tl.program_id(0)
    line, cell = tl.arange(0, LINES), tl.arange(0, TILE)
    channel = tl.load(stretches_ptr) + line
    is_line, is_cell = line < tl.load(stretches_ptr + 1), cell < SIZE
    mask = is_line[:, None] & is_cell[None, :]
    within = line[:, None] * SIZE + cell[None, :]
    cells = pool_ptr + place_of(row, stretches_ptr + 2, pages_ptr, NUM_PAGES, PAGE) + within
    held = tl.where(start > 0, SIZE, 0)
    state = tl.load(cells, mask=is_line[:, None] & (cell < held)[None, :], other=0.0)
    rates = tl.load(rates_ptr + channel[:, None] * SIZE + cell[None, :], mask=mask, other=0.0)
    rates = rates.to(tl.float32)
    for token in range(first, first + count):
        given = tl.load(inputs_ptr + token * inputs_stride + channel, mask=is_line, other=0.0)
        step = tl.load(steps_ptr + token * steps_stride + channel, mask=is_line, other=0.0)
        write = tl.load(write_ptr + token * write_stride + cell, mask=is_cell, other=0.0)
        read = tl.load(read_ptr + token * read_stride + cell, mask=is_cell, other=0.0)
        given, step = given.to(tl.float32), step.to(tl.float32)
        taken = (given * step)[:, None] * write.to(tl.float32)[None, :]
        state = state * tl.exp(step[:, None] * rates) + taken
        total = tl.sum(state * read.to(tl.float32)[None, :], 1)
        if DIRECT:
            direct = tl.load(direct_ptr + channel, mask=is_line, other=0.0)
            total += given * direct.to(tl.float32)
        tl.store(out_ptr + token * WIDTH + channel, total, mask=is_line)
    tl.store(cells, state, mask=mask)

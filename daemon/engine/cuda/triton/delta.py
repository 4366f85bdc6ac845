"""The gated delta rule over states in their pages: see `daemon.engine.layers.recurrent.delta_rule`.

A program walks through the tokens of one row with some columns of a head's state.
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

_EPSILON = tl.constexpr(1e-6)


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    units: torch.Tensor,
    rows: DeviceStateRows,
) -> torch.Tensor:
    """The values [T, H, dv] that the tokens of `rows` read, in the type of `value`; those of no row
    are not written.

    `query` and `key` [T, Hk, dk], `value` [T, H, dv], `decay` [T, H] or [T, H, dk], `beta` [T, H]:
    rows may lie apart. `units` int64 [H, 2]: page and offset, in numbers, of each head's matrix.
    """
    num_heads, value_dim = value.shape[1:]
    num_keys, key_dim = key.shape[1:]
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    keys = power_of_2(key_dim)
    columns = min(beside(keys), power_of_2(value_dim))
    pool = rows.numbers(torch.float32)
    if len(rows) and len(value):
        _delta_rule[(num_heads, -(-value_dim // columns), len(rows))](
            query, key, value, decay, beta, out, pool, units, *rows.columns, key_dim**-0.5,
            *(row_stride(part) for part in (query, key, value, decay, beta)),
            NUM_PAGES=rows.pages.shape[1], PAGE=pool.shape[1], SHARED=num_heads // num_keys,
            KEY_DIM=key_dim, KEYS=keys, VALUE_DIM=value_dim, COLUMNS=columns,
            CHANNELS=decay.dim() == 3, num_warps=1, num_stages=1,
        )  # fmt: skip
    return out


@triton.jit
def _delta_rule(
    query_ptr, key_ptr, value_ptr, decay_ptr, beta_ptr, out_ptr, pool_ptr, units_ptr, pages_ptr,
    starts_ptr, firsts_ptr, counts_ptr, scale,
    query_stride, key_stride, value_stride, decay_stride, beta_stride, NUM_PAGES: tl.constexpr,
    PAGE: tl.constexpr, SHARED: tl.constexpr, KEY_DIM: tl.constexpr, KEYS: tl.constexpr,
    VALUE_DIM: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """COLUMNS columns of one head's state, through the tokens of one row."""
    head, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    first, count, start = row_of(row, starts_ptr, firsts_ptr, counts_ptr)
    if count == 0:
        return
    channel = tl.arange(0, KEYS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = channel < KEY_DIM, column < VALUE_DIM
    mask = is_key[:, None] & is_value[None, :]
    cells = pool_ptr + place_of(row, units_ptr + 2 * head, pages_ptr, NUM_PAGES, PAGE)
    cells = cells + channel[:, None] * VALUE_DIM + column[None, :]
    held = tl.where(start > 0, KEY_DIM, 0)
    state = tl.load(cells, mask=(channel < held)[:, None] & is_value[None, :], other=0.0)
    of_keys, of_values = head // SHARED * KEY_DIM + channel, head * VALUE_DIM + column
    for token in range(first, first + count):
        query = tl.load(query_ptr + token * query_stride + of_keys, mask=is_key, other=0.0)
        key = tl.load(key_ptr + token * key_stride + of_keys, mask=is_key, other=0.0)
        value = tl.load(value_ptr + token * value_stride + of_values, mask=is_value, other=0.0)
        beta = tl.load(beta_ptr + token * beta_stride + head).to(tl.float32)
        query, key = query.to(tl.float32), key.to(tl.float32)
        query *= tl.rsqrt(tl.sum(query * query, 0) + _EPSILON) * scale
        key *= tl.rsqrt(tl.sum(key * key, 0) + _EPSILON)
        if CHANNELS:
            decays = decay_ptr + token * decay_stride + head * KEY_DIM + channel
            decay = tl.load(decays, mask=is_key, other=0.0).to(tl.float32)
            state *= tl.exp(decay)[:, None]
        else:
            state *= tl.exp(tl.load(decay_ptr + token * decay_stride + head).to(tl.float32))
        given = tl.sum(key[:, None] * state, 0)
        state += key[:, None] * (beta * (value.to(tl.float32) - given))[None, :]
        read = tl.sum(query[:, None] * state, 0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * tl.num_programs(0) * VALUE_DIM + of_values, read, mask=is_value)
    tl.store(cells, state, mask=mask)

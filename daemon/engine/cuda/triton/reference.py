"""The kernels' meaning, in plain torch and float32: slow, short, and the oracle of their tests."""

from typing import TYPE_CHECKING

import torch

from daemon.engine.kv.eight_bit import quantise
from daemon.engine.layers.attention import FULL, AttentionVariant

if TYPE_CHECKING:
    from daemon.engine.layers.ops import Heads, Norm


def paged_decode_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    kv_scales: torch.Tensor | None = None,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """Attention of one new token a row over its context; a row without context gives 0.

    `query` [B, heads, head_dim]; `context_lens` int32 [B] counts the new token too.
    """
    output = torch.zeros_like(query)
    for row, length in enumerate(context_lens.tolist()):
        if length:
            keys, values = gather(kv_cache, kv_scales, layer, block_tables[row], length)
            new = query[row : row + 1]
            output[row] = attend(new, keys, values, length - 1, scale, variant)[0]
    return output


def paged_row_attention(
    query: torch.Tensor,
    turned: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Means of latent rows; see `daemon.engine.cuda.triton.latent`."""
    out, rank = torch.zeros_like(query), query.shape[-1]
    whole = torch.cat((query, turned), -1).float()
    for row, length in enumerate(context_lens.tolist()):
        if length:
            positions = torch.arange(length, device=query.device)
            size = kv_cache.shape[3]
            blocks = block_tables[row].long()[positions // size]
            rows = kv_cache[blocks, layer, 0, positions % size, 0].float()
            weights = torch.softmax(whole[row] @ rows.T * scale, -1)
            out[row] = (weights @ rows[:, :rank]).to(out.dtype)
    return out


def paged_prefill_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    row_offsets: torch.Tensor,
    scale: float,
    kv_scales: torch.Tensor | None = None,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """Causal attention of `counts[b]` new tokens a row, the first at position `starts[b]`.

    Row b's tokens are the `counts[b]` from `query[row_offsets[b]]` on; their keys are in the cache.
    """
    output = torch.zeros_like(query)
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if count:
            table, length = block_tables[row], start + count
            keys, values = gather(kv_cache, kv_scales, layer, table, length)
            first = int(row_offsets[row])
            new = query[first : first + count]
            output[first : first + count] = attend(new, keys, values, start, scale, variant)
    return output


def gather(
    kv_cache: torch.Tensor,
    kv_scales: torch.Tensor | None,
    layer: int,
    table: torch.Tensor,
    length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `length` keys and values of one row, float32 [length, kv_head, head_dim]."""
    positions = torch.arange(length, device=kv_cache.device)
    block_size = kv_cache.shape[3]
    blocks, offsets = table.long()[positions // block_size], positions % block_size
    if kv_scales is None:
        pairs = kv_cache[blocks, layer, :, offsets].float()
    else:
        # As bytes: what moves numbers without reading them knows more types of them.
        pairs = kv_cache.view(torch.uint8)[blocks, layer, :, offsets].view(kv_cache.dtype).float()
        pairs *= kv_scales[blocks, layer, :, offsets].unsqueeze(-1)
    return pairs[:, 0], pairs[:, 1]


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    scale: float,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    """Causal attention of queries at `start`, `start + 1`, ... over the keys of positions 0, ..."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    if variant.cap:
        scores = variant.cap * torch.tanh(scores / variant.cap)
    positions = start + torch.arange(len(query), device=query.device).unsqueeze(1)
    key_positions = torch.arange(len(keys), device=query.device)
    hidden = key_positions > positions
    if variant.window:
        hidden |= key_positions <= positions - variant.window
    scores = scores.masked_fill(hidden, -torch.inf)
    # In front of every window there may be NaN, which times zero is NaN.
    values = values.masked_fill(hidden.all(0)[:, None, None], 0.0)
    if variant.sinks is not None:
        sinks = variant.sinks.float().view(-1, 1, 1).expand(-1, len(query), 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """Store `key`, `value` [T, kv_head, head_dim] at (block, offset) int32 [T]; block < 0: drop."""
    kept = slot_blocks >= 0
    blocks, offsets = slot_blocks[kept].long(), slot_offsets[kept].long()
    for pair, states in enumerate((key[kept], value[kept])):
        if kv_scales is not None:
            stored, kv_scales[blocks, layer, pair, offsets] = quantise(states, kv_cache.dtype)
            cells = kv_cache.view(torch.uint8)
            cells[blocks, layer, pair, offsets] = stored.view(torch.uint8)
        else:
            kv_cache[blocks, layer, pair, offsets] = states


def add_norm(
    states: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """`states` [T, W] += `added` [T, W], then their RMS norm times `weight` [W]; [T, W]."""
    if added is not None:
        states += added
    return _normed(states, weight, epsilon).to(states.dtype)


def silu_mul(states: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of `states` [T, 2 * W], gates first; [T, W]."""
    gate, up = states.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(states.dtype)


def gelu_mul(states: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up as `silu_mul` has it; gelu as approximated by tanh."""
    gate, up = states.float().chunk(2, -1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(states.dtype)


def place(
    projected: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_scales: torch.Tensor | None,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    heads: "Heads",
) -> None:
    """Norm and turn the queries of `projected` in place; put its keys, so too, and values away.

    `projected` [T, heads + 2 * kv_heads, head_dim]; `cos`, `sin` [T, rotary_dim]; int32 [T] slots.
    """
    sizes = (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    query, key, value = projected.float().split(sizes, 1)
    query = _turned(query, heads.query_norm, cos, sin)
    key = _turned(key, heads.key_norm, cos, sin)
    projected[:, : heads.num_heads] = query.to(projected.dtype)
    if kv_scales is None:
        key, value = key.to(kv_cache.dtype), value.to(kv_cache.dtype)
    write_kv(key, value, kv_cache, layer, slot_blocks, slot_offsets, kv_scales)


def _turned(
    states: torch.Tensor, norm: "Norm | None", cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Heads [T, heads, head_dim] normed and turned, float32."""
    if norm is not None:
        states = _normed(states, norm.weight, norm.epsilon)
    turning, staying = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    low, high = turning.chunk(2, -1)
    turning = turning * cos.unsqueeze(1) + torch.cat((-high, low), -1) * sin.unsqueeze(1)
    return torch.cat((turning, staying), -1)


def _normed(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm over the last dimension, float32."""
    states = states.float()
    mean = states.square().mean(-1, keepdim=True)
    return states * torch.rsqrt(mean + epsilon) * weight.float()

"""The kernels' meaning, in plain torch and float32: slow, short, and the oracle of their tests."""

import torch


def paged_decode_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one new token a row over its context; a row without context gives 0.

    `query` [B, heads, head_dim]; `context_lens` int32 [B] counts the new token too.
    """
    output = torch.zeros_like(query)
    for row, length in enumerate(context_lens.tolist()):
        if length:
            keys, values = gather(kv_cache, layer, block_tables[row], length)
            output[row] = attend(query[row : row + 1], keys, values, length - 1, scale)[0]
    return output


def paged_prefill_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    row_offsets: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Causal attention of `counts[b]` new tokens a row, the first at position `starts[b]`.

    Row b's tokens are the `counts[b]` from `query[row_offsets[b]]` on; their keys are in the cache.
    """
    output = torch.zeros_like(query)
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if count:
            keys, values = gather(kv_cache, layer, block_tables[row], start + count)
            first = int(row_offsets[row])
            new = query[first : first + count]
            output[first : first + count] = attend(new, keys, values, start, scale)
    return output


def gather(
    kv_cache: torch.Tensor, layer: int, table: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `length` keys and values of one row, float32 [length, kv_head, head_dim]."""
    positions = torch.arange(length, device=kv_cache.device)
    block_size = kv_cache.shape[3]
    blocks = table.long()[positions // block_size]
    pairs = kv_cache[blocks, layer, :, positions % block_size].float()
    return pairs[:, 0], pairs[:, 1]


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scale: float
) -> torch.Tensor:
    """Causal attention of queries at `start`, `start + 1`, ... over the keys of positions 0, ..."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    positions = start + torch.arange(len(query), device=query.device)
    future = torch.arange(len(keys), device=query.device) > positions.unsqueeze(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    layer: int,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
) -> None:
    """Store `key`, `value` [T, kv_head, head_dim] at (block, offset) int32 [T]; block < 0: drop."""
    kept = slot_blocks >= 0
    blocks, offsets = slot_blocks[kept].long(), slot_offsets[kept].long()
    kv_cache[blocks, layer, 0, offsets] = key[kept]
    kv_cache[blocks, layer, 1, offsets] = value[kept]


def copy_blocks(kv_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy whole blocks, all layers; `sources`, `targets` int32 [C], no block in both."""
    kv_cache[targets.long()] = kv_cache[sources.long()]

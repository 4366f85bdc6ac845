"""The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), in plain torch.

A head's state S [dk, dv] maps keys to values. A token decays it, then writes what its value differs
by from what S already gives for its key, and reads S by its query:

    S = exp(g) S;  S = S + k (beta (v - k S));  o = q S

Decay is one number for a head, or one for each of its key's channels (Kimi's delta attention).
Several tokens at once: what they write, U [L, dv], solves (I + A) U = beta (v - exp(G) k S), with G
the decay since the beginning and A[i, j] = beta_i k_i . k_j exp(G_i - G_j) below the diagonal.
"""

import torch

from daemon.engine.layers.recurrent.rows import CHUNK_TOKENS, TokenRows

CHANNEL_CHUNK_TOKENS = 16
"""Tokens at once where channels decay apart: each pair of them has numbers for every channel."""

_EPSILON = 1e-6


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    rows: TokenRows,
) -> torch.Tensor:
    """Read and write float32 `states` [B, H, dk, dv] by T tokens; [T, H, dv], as `value`.

    `query` and `key` [T, Hk, dk] are made unit vectors, and serve H / Hk heads of `value`
    [T, H, dv] each; `decay` [T, H] or [T, H, dk] is a logarithm, `beta` [T, H].
    """
    repeats = value.shape[1] // key.shape[1]
    query, key = (_unit(part).repeat_interleave(repeats, 1) for part in (query, key))
    query = query * query.shape[-1] ** -0.5
    most = CHUNK_TOKENS if decay.dim() == 2 else CHANNEL_CHUNK_TOKENS
    output = torch.empty_like(value, memory_format=torch.contiguous_format)
    decay = decay.float() if decay.dim() == 3 else decay.float().unsqueeze(-1)
    parts = query, key, value.float(), decay, beta.float().unsqueeze(-1)
    for some, tokens in rows.pieces(states.device, most):
        chunk = [part[tokens].transpose(1, 2) for part in parts]  # [N, H, L, ...]
        read, states[some] = _chunk(states[some], *chunk)
        output[tokens] = read.transpose(1, 2).to(output.dtype)
    return output


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    vectors = vectors.float()
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + _EPSILON)


def _chunk(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reads of L tokens [N, H, L, ...], and the state behind them."""
    total = decay.double().cumsum(-2)  # of two long sums, float32 would round the difference
    since = total.exp().to(state.dtype)
    missing = beta * (value - (key * since) @ state)
    system = beta * _decayed_products(key, key, total)
    written = torch.linalg.solve_triangular(system, missing, upper=False, unitriangular=True)
    read = (query * since) @ state + _decayed_products(query, key, total) @ written
    last = total[..., -1:, :]
    kept = (key * (last - total).exp().to(state.dtype)).transpose(-1, -2)
    return read, state * since[..., -1:, :].transpose(-1, -2) + kept @ written


def _decayed_products(left: torch.Tensor, right: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """left_i . right_j exp(total_i - total_j) for j <= i, else 0: [..., L, L]."""
    between = (total.unsqueeze(-2) - total.unsqueeze(-3)).to(left.dtype)  # [..., L, L, 1 or dk]
    later = torch.ones(between.shape[-3:-1], dtype=torch.bool, device=left.device).triu(1)
    factors = between.masked_fill(later.unsqueeze(-1), -torch.inf).exp()
    if total.shape[-1] == 1:
        return (left @ right.transpose(-1, -2)) * factors.squeeze(-1)
    return torch.einsum("...id,...jd,...ijd->...ij", left, right, factors)

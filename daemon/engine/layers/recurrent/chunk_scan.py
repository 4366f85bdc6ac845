"""The scan of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs"), in plain torch.

A head's state S [P, N] decays by one number for each token, and takes its inputs x [P] along the
token's direction B [N]; the token's direction C [N] reads it:

    S = exp(dt A) S + dt x B^T;  y = S C + D x
"""

import torch
from torch.nn.functional import softplus

from daemon.engine.layers.recurrent.rows import TokenRows


def time_steps(
    dt: torch.Tensor,
    bias: torch.Tensor | None,
    positive: bool,
    limits: tuple[float, float] = (0.0, torch.inf),
) -> torch.Tensor:
    """Steps of time as a layer computes them from its projection `dt`, in that one's type."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return (softplus(dt) if positive else dt).clamp(*limits)


def chunk_scan(
    inputs: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    direct: torch.Tensor | None,
    states: torch.Tensor,
    rows: TokenRows,
) -> torch.Tensor:
    """Scan T tokens behind float32 `states` [B, H, P, N], which become those behind them.

    `inputs` x [T, H, P], `steps` dt [T, H], `rates` A [H], `write` B and `read` C [T, G, N], each
    for H / G heads, `direct` D [H]. Returns float32 [T, H, P].
    """
    repeats = inputs.shape[1] // write.shape[1]
    inputs, steps = inputs.float(), steps.float()
    write, read = (part.float().repeat_interleave(repeats, 1) for part in (write, read))
    decay = (steps * rates.float()).unsqueeze(-1)
    parts = inputs * steps.unsqueeze(-1), decay, write, read
    output = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    for some, tokens in rows.pieces(states.device):
        chunk = [part[tokens].transpose(1, 2) for part in parts]  # [N, H, L, ...]
        scanned, states[some] = _chunk(states[some], *chunk)
        output[tokens] = scanned.transpose(1, 2)
    return output if direct is None else output + inputs * direct.float().unsqueeze(-1)


def _chunk(
    state: torch.Tensor,
    inputs: torch.Tensor,
    decay: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of L tokens [N, H, L, ...], and the state [N, H, P, N] behind them."""
    total = decay.double().cumsum(-2)  # of two long sums, float32 would round the difference
    between = (total - total.transpose(-1, -2)).to(state.dtype)
    later = torch.ones(between.shape[-2:], dtype=torch.bool, device=total.device).triu(1)
    weights = (read @ write.transpose(-1, -2)) * between.masked_fill(later, -torch.inf).exp()
    since, last = total.exp().to(state.dtype), total[..., -1:, :]
    output = weights @ inputs + (read * since) @ state.transpose(-1, -2)
    taken = inputs.transpose(-1, -2) @ (write * (last - total).exp().to(state.dtype))
    return output, state * since[..., -1:, :] + taken

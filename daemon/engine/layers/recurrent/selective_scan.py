"""The scan of Mamba 1 (Gu and Dao 2023, "Mamba"), in plain torch.

A channel's state S [N] decays by N numbers for each token, and takes the channel's input x along
the token's direction B [N]; its direction C [N] reads it:

    S = exp(dt A) S + dt x B;  y = S C + D x
"""

import torch

from daemon.engine.layers.recurrent.rows import TokenRows

_SCANNED_TOKENS = 32
"""Tokens at once: each has numbers for every channel's whole state."""


def selective_scan(
    inputs: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    direct: torch.Tensor | None,
    states: torch.Tensor,
    rows: TokenRows,
) -> torch.Tensor:
    """Scan T tokens behind float32 `states` [B, C, N], which become those behind them.

    `inputs` x and `steps` dt [T, C], `rates` A [C, N], `write` B and `read` C [T, N], `direct` D
    [C]. Returns float32 [T, C].
    """
    inputs, steps = inputs.float(), steps.float()
    write, read, rates = write.float(), read.float(), rates.float()
    output = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    for some, tokens in rows.pieces(states.device, _SCANNED_TOKENS):
        step = steps[tokens].unsqueeze(-1)  # [N, L, C, 1]
        decay = (step * rates).exp()
        taken = step * inputs[tokens].unsqueeze(-1) * write[tokens].unsqueeze(2)
        every = _scanned(decay, taken, states[some].unsqueeze(1))
        states[some] = every[:, -1]
        output[tokens] = (every @ read[tokens].unsqueeze(-1)).squeeze(-1)
    return output if direct is None else output + inputs * direct.float()


def _scanned(decay: torch.Tensor, taken: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The states behind each of L tokens [N, L, C, N'], from the one before them [N, 1, C, N'].

    Each round joins every token with those as far before it as it already covers.
    """
    reach = 1
    while reach < decay.shape[1]:
        before, own = decay[:, :-reach], decay[:, reach:]
        taken = torch.cat((taken[:, :reach], own * taken[:, :-reach] + taken[:, reach:]), 1)
        decay = torch.cat((decay[:, :reach], own * before), 1)
        reach *= 2
    return decay * state + taken

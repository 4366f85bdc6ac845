"""One forward pass over a flattened row of tokens."""

from typing import Any

import torch

from daemon.engine.attention import PagedAttention


class Model:
    """A loaded causal language model; logits are computed for sampled tokens only."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.weight_bytes = sum(parameter.nbytes for parameter in model.parameters())

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """`tokens`, `positions` int64 [T]; `sampled` int64 [R] indexes them. Returns [R, vocab]."""
        output = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=sampled,
            paged=paged,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

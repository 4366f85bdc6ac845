"""transformers' own modelling code as a forward pass over a flattened row of tokens."""

from typing import Any

import torch
from torch import nn

from daemon.engine.layers.attention import PagedAttention, attending


class Modules:
    """A loaded causal language model of any architecture that takes our attention."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def normed(
        self, tokens: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """Logits [T, vocab] already: the model computes them from states itself."""
        return self._logits(tokens, positions, 0, paged)

    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """Logits [R, vocab] already, as `normed`."""
        return self._logits(tokens, positions, wanted, paged)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits as they are."""
        return states

    def products(self) -> list[nn.Module]:
        """All modules, those without products too."""
        return list(self.model.modules())

    def _logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        kept: torch.Tensor | int,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """`kept`: index of the tokens whose logits are wanted; 0 means all."""
        with attending(paged):
            output = self.model(
                input_ids=tokens.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=kept,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

"""transformers' own modelling code as a forward pass over a flattened row of tokens."""

from typing import Any

import torch
from torch import nn

from daemon.engine.layers.attention import PagedAttention, attending


class KnownPositions:
    """A stand-in for transformers' cache, for layers that count positions on from what a cache has
    seen: here, what lies before each token of the row.
    """

    def __init__(self, positions: torch.Tensor) -> None:
        """`positions` int64 [T] of a row of tokens."""
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, _layer: int = 0) -> torch.Tensor:
        """int64 [T]; what a layer adds to its own count of the row's tokens."""
        return self._before

    def update(
        self, key: torch.Tensor, value: torch.Tensor, _layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The step's own keys and values: nothing is kept here."""
        return key, value

    def get_query_offset(self, _layer: int) -> int:
        """The first query of a mask: always 0."""
        return 0

    def get_mask_sizes(self, num_queries: int, _layer: int) -> tuple[int, int]:
        """The number of keys of a mask, and the first."""
        return num_queries, 0


def counted(model: Any, positions: torch.Tensor) -> dict[str, Any]:
    """The arguments beside `positions`, int64 [T], of a model that counts positions itself."""
    counts = getattr(model.config, "attn_temperature_tuning", False)
    return {"past_key_values": KnownPositions(positions)} if counts else {}


class Modules:
    """A loaded causal language model of any architecture that takes our attention."""

    def __init__(self, model: Any, windows: tuple[int, ...] = ()) -> None:
        """`windows` of each layer, where one has any (see `AttentionVariant`)."""
        self.model = model
        self._windows = windows

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
        with attending(paged, self._windows):
            output = self.model(
                input_ids=tokens.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=kept,
                **counted(self.model, positions),
            )
        logits: torch.Tensor = output.logits[0]
        return logits

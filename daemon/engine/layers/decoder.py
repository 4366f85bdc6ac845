"""A decoder of the usual kind, computed straight: no wrappers, merged projections, fused steps.

Pre-norm, rotary positions, a gated MLP or a mixture: Llama, Mistral, Qwen and their like. `fuse`
makes one from a loaded model, and a trial finds out whether it computes the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.embeddings import Embeddings, PlainEmbeddings
from daemon.engine.layers.mlp import GatedMlp, Layer, Mixture
from daemon.engine.layers.ops import Heads, Norm, Ops
from daemon.engine.layers.rotary import RotaryTable

Prepare = Callable[[Any], Any]
"""Turns a linear layer, or the experts of a mixture, into the module that computes it here."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer, in the order in which it computes."""

    input_norm: Norm
    query_key_value: Layer
    heads: Heads
    output: Layer
    mlp_norm: Norm
    mlp: GatedMlp | Mixture

    def products(self) -> list[object]:
        """Every matrix product, and perhaps what is none."""
        return [self.query_key_value, self.output, *self.mlp.products()]


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers, and what they share."""

    embeddings: Embeddings
    rotary: RotaryTable
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Layer
    ops: Ops

    def products(self) -> list[object]:
        """Every matrix product, and perhaps what is none."""
        return [*(product for layer in self.layers for product in layer.products()), self.head]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product: norms, and embeddings that are plain."""
        norms = [self.norm]
        for layer in self.layers:
            norms += [layer.input_norm, layer.mlp_norm]
            heads = layer.heads.query_norm, layer.heads.key_norm
            norms += [norm for norm in heads if norm is not None]
        rows = [self.embeddings.weight] if isinstance(self.embeddings, PlainEmbeddings) else []
        return [*rows, *(norm.weight for norm in norms)]

    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """The states of some tokens [R, width] as `head` takes them; `wanted` indexes them."""
        some = wanted if len(wanted) < len(tokens) else None
        return self.ops.norm(*self._through_layers(tokens, positions, paged, some), self.norm)

    def normed(
        self, tokens: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """The states of all tokens [T, width] as `head` takes them."""
        return self.ops.norm(*self._through_layers(tokens, positions, paged), self.norm)

    def _through_layers(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        paged: PagedAttention,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual [T, width] behind the last layer, and what is still to be added to it.

        With `wanted` of these tokens alone, [R, width]: once the last layer has written its keys
        and values, the others are not read.
        """
        states = self.embeddings(tokens)
        angles = self.rotary.angles(positions)
        added = None
        for index, layer in enumerate(self.layers):
            normed = self.ops.norm(states, added, layer.input_norm)
            projected = layer.query_key_value(normed)
            attended = self.ops.attend(paged, index, projected, layer.heads, angles)
            if wanted is not None and index + 1 == len(self.layers):
                states, attended = states[wanted], attended[wanted]
                if not len(wanted):
                    return states, None
            normed = self.ops.norm(states, layer.output(attended), layer.mlp_norm)
            added = layer.mlp(normed, self.ops)
        return states, added

"""The attention of a fused decoder's layer with latent rows."""

from dataclasses import dataclass

import torch

from daemon.engine.layers.attention import AttentionVariant, PagedAttention
from daemon.engine.layers.latent import LatentProjection
from daemon.engine.layers.mlp import Layer
from daemon.engine.layers.ops import Angles, Norm, Ops


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The heads of a layer's first projection [T, queries + row]: where queries are projected in
    two steps, it has their inner states in place of queries.
    """

    projection: LatentProjection
    row_norm: Norm
    scale: float
    query: Layer | None = None  # from inner states to queries
    query_norm: Norm | None = None  # of inner states
    in_pairs: bool = False  # neighbouring numbers turn together, not those of two halves

    @property
    def variant(self) -> AttentionVariant:
        """The variant of attention: to rows."""
        return AttentionVariant(latent=self.projection)

    @property
    def width(self) -> int:
        """Numbers of a token that attention gives."""
        return self.projection.num_heads * self.projection.value_dim

    def norms(self) -> list[Norm]:
        """Every norm."""
        return [self.row_norm, *([] if self.query_norm is None else [self.query_norm])]

    def products(self) -> list[object]:
        """Every matrix product, and what is none."""
        return [self.projection, *([] if self.query is None else [self.query])]

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """Attention from a first projection [T, queries + row], changed here.

        Norms and turns rows and queries, writes rows to the pool, and attends. Returns [T, width].
        """
        made = self.projection
        states, row = projected.split((projected.shape[1] - made.width, made.width), 1)
        if self.query is not None:
            assert self.query_norm is not None, "inner states are normed"
            states = self.query(ops.norm(states.contiguous(), None, self.query_norm))
        query, row = states.unflatten(1, (made.num_heads, -1)), row.unsqueeze(1)
        ops.norm_heads(row[..., : made.rank], self.row_norm)
        turn = ops.turn_pairs if self.in_pairs else ops.rotate
        for part, first in ((query, made.own), (row, made.rank)):
            turn(part[..., first:], *angles)
        return paged(layer, query, row, row, self.scale, self.variant).flatten(1)

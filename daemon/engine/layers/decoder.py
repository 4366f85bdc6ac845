"""A decoder of the usual kind, computed straight: no wrappers, merged projections, fused steps.

Pre-norm, rotary positions, a gated MLP or a mixture: Llama, Mistral, Qwen and their like; with
norms behind attention and MLP, Gemma; with scaled states too, Gemma 4; with sinks, gpt-oss; with
latent rows, DeepSeek V3; with delta nets, Mamba 1 and 2 or short convolutions in place of
attention, Qwen3.5, Jamba, Granite 4 H, Nemotron-H and LFM2; with Mamba 2 beside it, Falcon-H1.
`fuse` makes one from a loaded model, and a trial finds out whether it computes the same.
"""

from dataclasses import dataclass

import torch

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.embeddings import Embeddings, PlainEmbeddings, SplitRows
from daemon.engine.layers.latent_heads import LatentHeads
from daemon.engine.layers.mixers import StateMixer
from daemon.engine.layers.mlp import DenseMlp, Layer, Mixture
from daemon.engine.layers.ops import Heads, Norm, Ops
from daemon.engine.layers.parallel_heads import ParallelHeads, products_of
from daemon.engine.layers.ranks import bare
from daemon.engine.layers.rotary import RotaryTable
from daemon.engine.layers.stages import StageHead, StageLinks


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer, in the order in which it computes; some have no MLP.

    Where a model norms what attention and the MLP give, before it adds it, it has two norms more.
    """

    input_norm: Norm
    query_key_value: Layer
    heads: Heads | LatentHeads | StateMixer | ParallelHeads
    output: Layer
    mlp_norm: Norm | None
    mlp: DenseMlp | Mixture | None
    output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None
    rotary: int = 0  # which of the decoder's
    number: int = 0  # of the layer that pools know its pages and states by
    scale: float = 1.0  # of the states behind it; the norm of the MLP's output has it already

    def norms(self) -> list[Norm]:
        """Every norm."""
        some = self.mlp_norm, self.output_norm, self.mlp_output_norm
        return [self.input_norm, *self.heads.norms(), *(norm for norm in some if norm is not None)]

    def products(self) -> list[object]:
        """Every matrix product, and perhaps what is none."""
        inner, behind = self.heads.products(), self.mlp.products() if self.mlp else []
        return [self.query_key_value, *inner, *products_of(self.output), *behind]


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers, and what they share."""

    embeddings: Embeddings
    rotary: tuple[RotaryTable, ...]  # by kinds of layers
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    vocabulary: Layer  # from states to logits
    ops: Ops
    cap: float = 0.0  # a logit becomes cap * tanh(logit / cap); 0: it stays

    def products(self) -> list[object]:
        """Every matrix product, and perhaps what is none."""
        inner = (product for layer in self.layers for product in layer.products())
        return [bare(product) for product in (*inner, self.vocabulary)]

    @property
    def own_embeddings(self) -> Embeddings:
        """The embeddings, or this rank's."""
        return self.embeddings.own if isinstance(self.embeddings, SplitRows) else self.embeddings

    @property
    def behind(self) -> StageLinks | None:
        """The links of a stage that hands states over to another."""
        head = self.vocabulary
        return head.links if isinstance(head, StageHead) and not head.links.is_last else None

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product: norms, routers, and embeddings that are plain."""
        norms = [self.norm, *(norm for layer in self.layers for norm in layer.norms())]
        own = self.own_embeddings
        rows = [own.weight] if isinstance(own, PlainEmbeddings) else []
        mixtures = [layer.mlp for layer in self.layers if isinstance(layer.mlp, Mixture)]
        heads = (layer.heads for layer in self.layers)
        mixers = [own for own in heads if isinstance(own, StateMixer | ParallelHeads)]
        inner = [weight for mixture in mixtures for weight in mixture.small_weights()]
        inner += [weight for mixer in mixers for weight in mixer.small_weights()]
        return [*rows, *inner, *(norm.weight for norm in norms)]

    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """The states of some tokens [R, width] as `head` takes them; `wanted` indexes them."""
        if self.behind is not None:
            return self._handed_over(tokens, positions, paged)[wanted]
        some = wanted if len(wanted) < len(tokens) else None
        return self._normed(*self._through_layers(tokens, positions, paged, some))

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocab] of states [R, width] that `rows` or `normed` gave."""
        logits = self.vocabulary(states)
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    def normed(
        self, tokens: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """The states of all tokens [T, width] as `head` takes them."""
        if self.behind is not None:
            return self._handed_over(tokens, positions, paged)
        return self._normed(*self._through_layers(tokens, positions, paged))

    def _handed_over(
        self, tokens: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """The residual [T, width] behind the last layer, all added, which the next stage gets."""
        states, added = self._through_layers(tokens, positions, paged)
        self._normed(states, added)  # adds what is still to be added, in place
        assert self.behind is not None
        self.behind.send(states)
        return states

    def _normed(self, states: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        last = self.layers[-1]
        of_added = last.output_norm if last.mlp is None else last.mlp_output_norm
        return self.ops.norm(states, added, self.norm, of_added)

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
        residual = self.begun(tokens, positions)
        for layer in self.layers:
            last = layer is self.layers[-1]
            self.through(layer, residual, paged, wanted if last else None)
        return residual.states, residual.added

    def begun(self, tokens: torch.Tensor, positions: torch.Tensor) -> "Residual":
        """The residual of tokens before the first layer."""
        states = self.embeddings(tokens)
        return Residual(states, [rotary.angles(positions) for rotary in self.rotary])

    def through(
        self,
        layer: DecoderLayer,
        residual: "Residual",
        paged: PagedAttention,
        wanted: torch.Tensor | None = None,
    ) -> None:
        """Take a residual through a layer; with `wanted`, these of its tokens alone."""
        normed = self.ops.norm(residual.states, residual.added, layer.input_norm, residual.of_added)
        projected = layer.query_key_value(normed)
        turns = residual.angles[layer.rotary]
        attended = layer.heads.attend(self.ops, paged, layer.number, projected, turns)
        if wanted is not None:
            residual.states, attended = residual.states[wanted], attended[wanted]
            if not len(wanted):
                residual.added = None
                return
        output = layer.output(attended)
        if layer.mlp is None or layer.mlp_norm is None:
            residual.added, residual.of_added = output, layer.output_norm
            return
        normed = self.ops.norm(residual.states, output, layer.mlp_norm, layer.output_norm)
        residual.added, residual.of_added = layer.mlp(normed, self.ops), layer.mlp_output_norm
        if layer.scale != 1.0:
            residual.states *= layer.scale

    def ended(self, residual: "Residual") -> torch.Tensor:
        """The states [T, width] as `head` takes them, of a residual behind the last layer."""
        return self._normed(residual.states, residual.added)


@dataclass(slots=True)
class Residual:
    """The states of a step's tokens between two layers."""

    states: torch.Tensor  # [T, width]
    angles: list[tuple[torch.Tensor, torch.Tensor]]  # of each kind of layers
    added: torch.Tensor | None = None  # [T, width], still to be added
    of_added: Norm | None = None  # which norms it before

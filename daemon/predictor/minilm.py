"""A BERT encoder in plain torch: transformers has it too, and takes seconds and memory to load."""

from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, gelu, layer_norm, scaled_dot_product_attention

from daemon.predictor.linear import Float32Linear, Linear


class BertShape(msgspec.Struct, frozen=True):
    """The fields of `config.json` that are needed."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float
    max_position_embeddings: int


class Bert:
    """Token ids to token states, on a CPU; several texts lie in one row of tokens, unpadded."""

    def __init__(self, folder: Path, linear: type[Linear] = Float32Linear) -> None:
        """Raises OSError, msgspec.MsgspecError, SafetensorError, KeyError for unfit files."""
        self.shape = msgspec.json.decode((folder / "config.json").read_bytes(), type=BertShape)
        weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
        layers = range(self.shape.num_hidden_layers)
        self._layers = [_Layer(weights, f"encoder.layer.{n}", self.shape, linear) for n in layers]
        self._norm = _Norm(weights, "embeddings.LayerNorm", self.shape)
        self._words = weights["embeddings.word_embeddings.weight"]
        # All tokens are of the first type.
        self._positions = (
            weights["embeddings.position_embeddings.weight"]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )

    def __call__(self, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """[T, hidden] states of the ids [T] of texts of these lengths, one behind the other."""
        positions = torch.cat([self._positions[:length] for length in lengths])
        states = self._norm(embedding(ids, self._words) + positions)
        for layer in self._layers:
            states = layer(states, lengths)
        return states


class _Norm:
    """Layer normalisation."""

    def __init__(self, weights: dict[str, torch.Tensor], name: str, shape: BertShape) -> None:
        self._weight, self._bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        self._eps = shape.layer_norm_eps

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return layer_norm(states, self._weight.shape, self._weight, self._bias, self._eps)


class _Layer:
    """Attention within each text, then the same two products for all tokens."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        name: str,
        shape: BertShape,
        linear: type[Linear],
    ) -> None:
        def merged(*names: str) -> Linear:
            return linear(
                torch.cat([weights[f"{name}.{part}.weight"] for part in names]),
                torch.cat([weights[f"{name}.{part}.bias"] for part in names]),
            )

        inner = "attention.self"
        self._num_heads = shape.num_attention_heads
        self._query_key_value = merged(f"{inner}.query", f"{inner}.key", f"{inner}.value")
        self._attended = merged("attention.output.dense")
        self._attended_norm = _Norm(weights, f"{name}.attention.output.LayerNorm", shape)
        self._up, self._down = merged("intermediate.dense"), merged("output.dense")
        self._norm = _Norm(weights, f"{name}.output.LayerNorm", shape)

    def __call__(self, states: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        parts = self._query_key_value(states).split(lengths)
        found = torch.cat([self._attention(part) for part in parts])
        states = self._attended_norm(self._attended(found) + states)
        return self._norm(self._down(gelu(self._up(states))) + states)

    def _attention(self, part: torch.Tensor) -> torch.Tensor:
        """[T, hidden] of one text's queries, keys and values [T, 3 * hidden]."""
        heads = part.view(1, len(part), 3, self._num_heads, -1).transpose(1, 3)
        query, key, value = heads.unbind(2)  # each [1, heads, T, head_dim]
        return scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)[0]

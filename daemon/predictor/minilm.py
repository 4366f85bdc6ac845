"""A BERT encoder in plain torch: transformers has it too, and takes seconds and memory to load."""

from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention


class BertShape(msgspec.Struct, frozen=True):
    """The fields of `config.json` that are needed."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float
    max_position_embeddings: int


class Bert:
    """Token ids to token states; in float32, on a CPU."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, msgspec.MsgspecError, SafetensorError, KeyError for unfit files."""
        self.shape = msgspec.json.decode((folder / "config.json").read_bytes(), type=BertShape)
        self._weights = load_file(folder / "model.safetensors")

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, T, hidden] states of ids [N, T]; `mask` [N, T] is true where a token is one."""
        weights = self._weights
        states = embedding(ids, weights["embeddings.word_embeddings.weight"])
        states = states + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        states = states + weights["embeddings.token_type_embeddings.weight"][0]
        states = self._norm("embeddings.LayerNorm", states)
        for layer in range(self.shape.num_hidden_layers):
            states = self._layer(f"encoder.layer.{layer}", states, mask[:, None, None, :])
        return states

    def _layer(self, name: str, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self._attention(f"{name}.attention.self", states, mask)
        found = self._linear(f"{name}.attention.output.dense", found)
        states = self._norm(f"{name}.attention.output.LayerNorm", states + found)
        inner = gelu(self._linear(f"{name}.intermediate.dense", states))
        found = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", states + found)

    def _attention(self, name: str, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = (*states.shape[:2], self.shape.num_attention_heads, -1)
        query, key, value = (
            self._linear(f"{name}.{which}", states).view(heads).transpose(1, 2)
            for which in ("query", "key", "value")
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).flatten(2)

    def _linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(states, (weight.numel(),), weight, bias, self.shape.layer_norm_eps)

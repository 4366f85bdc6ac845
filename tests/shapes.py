"""Shapes of models for tests: a tiny Llama in each form that describes one, and a large one."""

from typing import Any

from daemon.cost.profile import ModelSpec
from daemon.models.shape import ModelShape

SIZES: dict[str, Any] = {
    "vocab_size": 193,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
"""The tiny model's, as config.json names them."""

_SHAPE: dict[str, Any] = {
    "num_layers": SIZES["num_hidden_layers"],
    "num_heads": SIZES["num_attention_heads"],
    "num_kv_heads": SIZES["num_key_value_heads"],
    "head_dim": SIZES["hidden_size"] // SIZES["num_attention_heads"],
    "hidden_size": SIZES["hidden_size"],
    "vocab_size": SIZES["vocab_size"],
    "context_len": SIZES["max_position_embeddings"],
    "num_params": 100_000,
    "dtype": "float32",
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Its config.json."""
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 1}
    return {**kind, **SIZES, **changes}


def tiny_shape(**changes: Any) -> ModelShape:
    """Its shape, as the daemon reads it of a folder."""
    return ModelShape(**{"model_type": "llama", **_SHAPE, **changes})


def tiny_spec(**changes: Any) -> ModelSpec:
    """Its shape, as a profile has it."""
    return ModelSpec(**{"name": "tiny", **_SHAPE, **changes})


LLAMA_3_8B = ModelShape(
    model_type="llama",
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    hidden_size=4096,
    vocab_size=128256,
    context_len=8192,
    num_params=8_000_000_000,
    dtype="bfloat16",
)

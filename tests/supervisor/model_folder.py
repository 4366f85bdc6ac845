"""A tiny random Llama, written without torch: importing that costs more than all tests here."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.shapes import tiny_config

CONFIG = tiny_config(
    num_hidden_layers=1,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=0,
    dtype="float32",
)
SHAPES = {
    "model.embed_tokens": (193, 64),
    "model.layers.0.self_attn.q_proj": (64, 64),
    "model.layers.0.self_attn.k_proj": (32, 64),
    "model.layers.0.self_attn.v_proj": (32, 64),
    "model.layers.0.self_attn.o_proj": (64, 64),
    "model.layers.0.mlp.gate_proj": (96, 64),
    "model.layers.0.mlp.up_proj": (96, 64),
    "model.layers.0.mlp.down_proj": (64, 96),
    "model.layers.0.input_layernorm": (64,),
    "model.layers.0.post_attention_layernorm": (64,),
    "model.norm": (64,),
    "lm_head": (193, 64),
}
TOKENIZER = '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'


def write_llama(folder: Path) -> Path:
    """Write the model as a folder that the worker loads."""
    chance = np.random.default_rng(1)
    tensors = {
        f"{name}.weight": chance.normal(0.0, 0.5, shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    return folder

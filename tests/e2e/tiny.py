"""Folders with tiny random models whose steps take about a millisecond, for what is not text."""

import json
from pathlib import Path
from typing import Any

from daemon.engine.worker.torch_stubs import leave_out
from tests.api.folder import BOS, EOS, build, tokenizer
from tests.shapes import SIZES

CONTEXT_LEN = 2048

LLAMA = "llama"
WINDOWS, STATES, MIXTURE = "gemma3_text", "qwen3_5_text", "qwen3_moe"
"""Models with windows in some layers, with delta nets beside attention, and with experts."""
_FIELDS: dict[str, dict[str, Any]] = {
    LLAMA: {"hidden_size": 32, "intermediate_size": 64},
    WINDOWS: {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    STATES: {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    MIXTURE: {
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}


def tiny_folder(folder: Path, kind: str = LLAMA) -> Path:
    """Write a model of a kind and its tokenizer; gives the folder back."""
    leave_out()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    build(folder)
    sizes: dict[str, Any] = {
        **SIZES,
        "vocab_size": tokenizer().get_vocab_size(),
        "max_position_embeddings": CONTEXT_LEN,
        **_FIELDS[kind],
    }
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS}
    config = AutoConfig.for_model(kind, **sizes, **ends)
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.float().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder

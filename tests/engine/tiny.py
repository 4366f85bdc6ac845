"""Tiny random models of every tested architecture, and transformers' own greedy answers."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 193
CONTEXT_LEN = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT_LEN,
    "initializer_range": 0.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_GATED = {**_COMMON, "intermediate_size": 96, "num_key_value_heads": 2}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_GATED),
    "llama3": LlamaConfig(
        **_GATED,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama_tied": LlamaConfig(**_GATED, tie_word_embeddings=True, attention_bias=True),
    "mistral": MistralConfig(**_GATED, sliding_window=None),
    "qwen2": Qwen2Config(**_GATED, use_sliding_window=False),
    "qwen3": Qwen3Config(**_GATED, head_dim=32),
    "opt": OPTConfig(**_COMMON, ffn_dim=96, word_embed_proj_dim=64),
    "opt_post": OPTConfig(
        **_COMMON, ffn_dim=96, word_embed_proj_dim=32, do_layer_norm_before=False
    ),
    "gpt_neox": GPTNeoXConfig(**_COMMON, intermediate_size=96, rotary_pct=0.25),
    "gpt_neox_serial": GPTNeoXConfig(**_COMMON, intermediate_size=96, use_parallel_residual=False),
    # Built like a Llama, but it scales its residuals: what fusing must notice.
    "granite": GraniteConfig(**_GATED, residual_multiplier=0.3, embedding_multiplier=2.0),
}

FUSED = frozenset({"llama", "llama3", "llama_tied", "mistral", "qwen2", "qwen3"})
"""Those that the straight decoder computes."""


@cache
def reference(name: str) -> Any:
    """A random model of an architecture, computed by transformers alone."""
    torch.manual_seed(sum(map(ord, name)))
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(CONFIGS[name], attn_implementation="eager").float().eval()
    with torch.no_grad():
        # Biases start at zero, which would hide one that is lost.
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
    return model


def save(name: str, folder: Path) -> Path:
    """Write the model as a folder that the worker loads."""
    folder.mkdir(parents=True, exist_ok=True)
    reference(name).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers.generate's answer, whose end tokens neither end it nor are masked."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=-1,
        repetition_penalty=1.0,
        use_cache=True,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens

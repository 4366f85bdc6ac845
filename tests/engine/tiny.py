"""Tiny random models of every tested architecture, and transformers' own greedy answers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    NemotronHConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

from tests.shapes import SIZES

VOCAB_SIZE: int = SIZES["vocab_size"]
CONTEXT_LEN: int = SIZES["max_position_embeddings"]

_GATED: dict[str, Any] = {
    **SIZES,
    "initializer_range": 0.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_OF_GATES = ("intermediate_size", "num_key_value_heads")
_COMMON = {name: size for name, size in _GATED.items() if name not in _OF_GATES}


def deeper(num_layers: int) -> dict[str, Any]:
    """The fields of a model with gates of so many layers."""
    return {**_GATED, "num_hidden_layers": num_layers}


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
    "mistral_window": MistralConfig(**_GATED, sliding_window=11),
    "gemma3": Gemma3TextConfig(
        **_GATED, head_dim=16, sliding_window=9, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma2": Gemma2Config(**_GATED, head_dim=16, sliding_window=16),
    # As 26B-A4B: layers that see all have larger heads, one of keys, which are their values too.
    "gemma4": Gemma4TextConfig(
        **{**_GATED, "num_hidden_layers": 3, "num_key_value_heads": 4},
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=9,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
        hidden_size_per_layer_input=0,
    ),
    # As E4B: the last layers have no keys of their own, and all have inputs of their own.
    "gemma4_shared": Gemma4TextConfig(
        **{**_GATED, "num_hidden_layers": 6},
        head_dim=16,
        global_head_dim=32,
        sliding_window=9,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
    ),
    # As 31B: no mixture; layers that see all have other heads, whose values are their keys too.
    "gemma4_dense": Gemma4TextConfig(
        **{**_GATED, "num_hidden_layers": 3, "num_key_value_heads": 2},
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=9,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        final_logit_softcapping=30.0,
    ),
    # No sequence is as long as its window.
    "gemma4_wide": Gemma4TextConfig(
        **_GATED,
        head_dim=16,
        global_head_dim=32,
        sliding_window=300,
        layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
    ),
    # Its scale of scores grows with positions in the layer that turns nothing.
    "llama4": Llama4TextConfig(
        **_GATED,
        head_dim=16,
        attention_chunk_size=16,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
        floor_scale=5,
        attn_scale=0.5,
        num_local_experts=4,
        intermediate_size_mlp=96,
    ),
    "gpt_oss": GptOssConfig(
        **_GATED, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
    # Latent rows; a mixture with groups of experts behind a dense layer; scores scaled by yarn.
    "deepseek_v3": DeepseekV3Config(
        **{**_GATED, "num_hidden_layers": 3, "num_key_value_heads": 4},
        q_lora_rank=24,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=20,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        },
    ),
    "qwen2": Qwen2Config(**_GATED, use_sliding_window=False),
    "qwen3": Qwen3Config(**_GATED, head_dim=32),
    "opt": OPTConfig(**_COMMON, ffn_dim=96, word_embed_proj_dim=64),
    "opt_post": OPTConfig(
        **_COMMON, ffn_dim=96, word_embed_proj_dim=32, do_layer_norm_before=False
    ),
    "gpt_neox": GPTNeoXConfig(**_COMMON, intermediate_size=96, rotary_pct=0.25),
    "gpt_neox_serial": GPTNeoXConfig(**_COMMON, intermediate_size=96, use_parallel_residual=False),
    # Recurrent layers beside attention, within the same layers, and alone.
    "qwen3_5": Qwen3_5TextConfig(
        **_GATED,
        head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    ),
    # As Qwen3.5, each head of keys with all its parts side by side.
    "qwen3_next": Qwen3NextConfig(
        **_GATED,
        head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=16,
        linear_value_head_dim=8,
        num_experts=0,
    ),
    # Decays of each channel beside latent rows without positions.
    "kimi_linear": KimiLinearConfig(
        **{**_GATED, "num_key_value_heads": 4},
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "dense"],
        linear_head_dim=16,
        linear_num_heads=3,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=20,
    ),
    # Mamba 2 beside attention, and a multiplier everywhere.
    "falcon_h1": FalconH1Config(
        **_GATED,
        attention_in_multiplier=0.7,
        attention_out_multiplier=1.3,
        embedding_multiplier=1.5,
        key_multiplier=0.6,
        lm_head_multiplier=0.8,
        mlp_multipliers=[0.9, 1.2],
        ssm_in_multiplier=1.1,
        ssm_multipliers=[0.9, 0.8, 1.2, 0.7, 1.1],
        ssm_out_multiplier=0.6,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=2,
        mamba_expand=1,
    ),
    "mamba": MambaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        eos_token_id=1,
        pad_token_id=1,
        initializer_range=0.5,
    ),
    # Mamba 2 with groups, a multiplier everywhere, attention without positions, no experts.
    "granite_hybrid": GraniteMoeHybridConfig(
        **_GATED,
        shared_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"],
        num_local_experts=0,
        position_embedding_type="nope",
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        logits_scaling=2.0,
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_expand=2,
    ),
    # Its layers are mixers or MLPs; two mixers side by side.
    "nemotron_h": NemotronHConfig(
        **{**_GATED, "num_hidden_layers": 5},
        head_dim=16,
        layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=8,
        time_step_min=0.01,
    ),
    "lfm2": Lfm2Config(
        **_GATED,
        layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
        conv_bias=True,
    ),
    # Mamba 1 with norms, attention without positions, experts in its layer.
    "jamba": JambaConfig(
        **_GATED,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        mamba_dt_rank=6,
        mamba_expand=2,
    ),
    # Experts that are chosen with a bias.
    "lfm2_moe": Lfm2MoeConfig(
        **_GATED,
        layer_types=["conv", "full_attention"],
        num_dense_layers=1,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    # Built like a Llama, but it scales all that it adds, and begins with.
    "granite": GraniteConfig(**_GATED, residual_multiplier=0.3, embedding_multiplier=2.0),
}

FUSED = frozenset(
    {"llama", "llama3", "llama_tied", "mistral", "mistral_window", "qwen2", "qwen3"}
    | {"gemma2", "gemma3", "gemma4_dense", "gemma4_wide", "gpt_oss", "granite"}
    | {"qwen3_5", "granite_hybrid", "nemotron_h", "lfm2", "mamba", "jamba", "falcon_h1"}
    | {"lfm2_moe", "qwen3_next", "kimi_linear", "deepseek_v3"}
)
"""Those that the straight decoder computes."""


@cache
def reference(name: str) -> Any:
    """A random model of an architecture, computed by transformers alone."""
    return random_model(CONFIGS[name], sum(map(ord, name)))


def random_model(config: PreTrainedConfig, seed: int) -> Any:
    """A random model of a configuration, computed by transformers alone."""
    torch.manual_seed(seed)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        # Biases start at zero, which would hide one that is lost.
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
        # As do scales that are one.
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.3, 1.5)
    return model


def save(name: str, folder: Path) -> Path:
    """Write the model as a folder that the worker loads."""
    return save_model(reference(name), folder)


def save_model(model: Any, folder: Path) -> Path:
    """Write a model as a folder that the worker loads."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


def greedy(model: Any, prompt: list[int], num_tokens: int, guess: Sequence[int] = ()) -> list[int]:
    """transformers.generate's answer, whose end tokens neither end it nor are masked.

    A guess that is this answer is proved in one pass of the model: each of its tokens is likeliest
    behind those before it.
    """
    if num_tokens and len(guess) == num_tokens and _is_greedy(model, prompt, guess):
        return list(guess)
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


def _is_greedy(model: Any, prompt: list[int], answer: Sequence[int]) -> bool:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer[:-1]]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 :].argmax(-1).tolist() == list(answer)

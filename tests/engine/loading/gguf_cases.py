"""Tiny models of transformers, by architectures of GGUF, and what files of them say."""
# long: one table, a case for each architecture

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

VOCAB_SIZE, LAYERS, WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 300, 4, 64, 128, 4, 2, 32
EXPERTS, CHOSEN, CONTEXT_LEN = 4, 2, 256
_FACTORS = [[1.0 + 0.01 * at for at in range(8)], [1.5 + 0.1 * at for at in range(8)]]
"""Factors of positions in short and in long sequences."""


class Case(NamedTuple):
    """A type of transformers, and what a file of it says."""

    model_type: str
    settings: dict[str, Any]
    fields: Mapping[str, Any] = MappingProxyType({})
    turns: bool = False  # a head's halves become neighbours
    norms: bool = False  # grow by 1
    columns_first: bool = False  # matrices of layers, in the model
    in_rows: bool = False  # keys and values are made of latent rows
    tensors: Mapping[str, Any] = MappingProxyType({})
    served_as: str = ""  # another type than that of the folder
    fused: bool = False  # experts' gates and what they gate are one tensor


_HEAD = {"head_dim": HEAD_DIM}
_HEAD_FIELDS = {
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "rope.dimension_count": HEAD_DIM,
}
_EXPERTS = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
_EXPERT_FIELDS = {"expert_count": EXPERTS, "expert_used_count": CHOSEN}
_SCALES = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
_SCALE_FIELDS = {
    "attention.scale": 0.2,
    "embedding_scale": 3.0,
    "residual_scale": 0.5,
    "logit_scale": 4.0,
}
_GLM = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": WIDTH,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    **_HEAD,
}
_GLM_FIELDS = {
    **_EXPERT_FIELDS,
    "expert_feed_forward_length": WIDTH,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
_LATENT = {
    **_GLM,
    "num_key_value_heads": HEADS,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
}
_LATENT_FIELDS = {
    **_GLM_FIELDS,
    "expert_group_count": 2,
    "expert_group_used_count": 1,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 64,
    "attention.key_length": 64 + 16,
    "attention.value_length": 64,
    "attention.key_length_mla": 32 + 16,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 16,
}
_DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_DELTA_NET = {
    **_HEAD,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "partial_rotary_factor": 0.25,
}
_DELTA_FIELDS = {
    **_HEAD_FIELDS,
    "rope.dimension_count": HEAD_DIM // 4,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 192,
    "full_attention_interval": 4,
}
_SHARED = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": INNER,
}
_SHARED_FIELDS = {
    **_EXPERT_FIELDS,
    "expert_feed_forward_length": WIDTH,
    "expert_shared_feed_forward_length": INNER,
}
_RECURRENT = {"attention.recurrent_layers": [True] * (LAYERS - 1) + [False]}
_SECTIONS = {"rope.dimension_sections": [2, 1, 1, 0]}
_MAMBA_2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_MAMBA_FIELDS = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 2 * WIDTH,
}
_GRANITE_HYBRID = {
    **_SCALES,
    **_MAMBA_2,
    "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
    "shared_intermediate_size": WIDTH,
    "position_embedding_type": None,
}
_GRANITE_HYBRID_FIELDS = {
    **_SCALE_FIELDS,
    **_MAMBA_FIELDS,
    "attention.head_count_kv": [0, KV_HEADS] * (LAYERS // 2),
    "expert_shared_feed_forward_length": WIDTH,
    "rope.scaling.finetuned": False,
    "rope.dimension_count": WIDTH // HEADS,
}
_NO_HEADS = {
    "attention.head_count": 0,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "feed_forward_length": 0,
}
_LFM2 = {
    "layer_types": ["conv", "full_attention"] * (LAYERS // 2),
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
}
_LFM2_FIELDS = {
    "attention.head_count_kv": [0, KV_HEADS] * (LAYERS // 2),
    "shortconv.l_cache": 3,
}
_GEMMA_4 = {
    **_HEAD,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "sliding_window": 16,
    "global_head_dim": 2 * HEAD_DIM,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
_GEMMA_4_FIELDS = {
    "attention.head_count_kv": [KV_HEADS, 1] * (LAYERS // 2),
    "attention.key_length": 2 * HEAD_DIM,
    "attention.value_length": 2 * HEAD_DIM,
    "attention.key_length_swa": HEAD_DIM,
    "attention.value_length_swa": HEAD_DIM,
    "attention.shared_kv_layers": 0,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, False] * (LAYERS // 2),
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "rope.dimension_count": 2 * HEAD_DIM,
    "rope.dimension_count_swa": HEAD_DIM,
    "rope.freq_base_swa": 10000.0,
}
_GEMMA_4_TENSORS = {"rope_freqs.weight": [1.0] * (HEAD_DIM // 4) + [1e30] * (3 * HEAD_DIM // 4)}
_SCOUT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_NEMOTRON_H = {
    **_HEAD,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
}
_NEMOTRON_H_FIELDS = {
    **_HEAD_FIELDS,
    **_MAMBA_FIELDS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.scaling.finetuned": False,
}
CASES: dict[str, Case] = {
    "arcee": Case("arcee", _HEAD, _HEAD_FIELDS, turns=True),
    "cohere2": Case(
        "cohere2",
        {"sliding_window": 16, "logit_scale": 0.25},
        {"attention.sliding_window": 16, "logit_scale": 0.25},
    ),
    "command-r": Case("cohere", {"logit_scale": 0.25}, {"logit_scale": 0.25}),
    "deepseek2": Case(
        "deepseek_v3",
        {**_LATENT, "rope_parameters": _DEEPSEEK_YARN},
        {
            **_LATENT_FIELDS,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
        in_rows=True,
    ),
    "dots1": Case("dots1", _GLM, {**_GLM_FIELDS, **_HEAD_FIELDS}),
    "ernie4_5": Case("ernie4_5", _HEAD, _HEAD_FIELDS),
    "exaone4": Case(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS}
    ),
    "falcon-h1": Case(
        "falcon_h1",
        {
            **_HEAD,
            **_MAMBA_2,
            "mamba_d_ssm": 2 * WIDTH,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "embedding_multiplier": 4.0,
            "lm_head_multiplier": 0.5,
            "key_multiplier": 0.25,
            "attention_in_multiplier": 2.0,
            "attention_out_multiplier": 0.5,
            "ssm_in_multiplier": 2.0,
            "ssm_out_multiplier": 0.5,
            "mlp_multipliers": [2.0, 0.25],
            "ssm_multipliers": [0.5, 0.25, 2.0, 4.0, 0.5],
        },
        {**_HEAD_FIELDS, **_MAMBA_FIELDS},
    ),
    "gemma": Case("gemma", _HEAD, _HEAD_FIELDS, norms=True),
    "gemma2": Case(
        "gemma2",
        {**_HEAD, "sliding_window": 16, "query_pre_attn_scalar": HEAD_DIM},
        {
            **_HEAD_FIELDS,
            "attention.sliding_window": 16,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        norms=True,
    ),
    "gemma3": Case(
        "gemma3_text",
        {**_HEAD, "sliding_window": 16, "query_pre_attn_scalar": HEAD_DIM, "num_hidden_layers": 6},
        {**_HEAD_FIELDS, "attention.sliding_window": 16},
        norms=True,
    ),
    "gemma4": Case(
        "gemma4_text",
        {
            **_GEMMA_4,
            "enable_moe_block": True,
            "num_experts": EXPERTS,
            "top_k_experts": CHOSEN,
            "moe_intermediate_size": WIDTH,
        },
        {**_GEMMA_4_FIELDS, **_EXPERT_FIELDS, "expert_feed_forward_length": WIDTH},
        tensors=_GEMMA_4_TENSORS,
        fused=True,
    ),
    "glm4": Case("glm4", _HEAD, {**_HEAD_FIELDS, "rope.dimension_count": HEAD_DIM // 2}),
    "glm4moe": Case(
        "glm4_moe",
        {**_GLM, "use_qk_norm": True},
        {**_GLM_FIELDS, **_HEAD_FIELDS, "rope.dimension_count": HEAD_DIM // 2},
    ),
    "gpt2": Case("gpt2", {"n_inner": INNER}, columns_first=True),
    "granite": Case("granite", _SCALES, _SCALE_FIELDS, turns=True),
    "granitehybrid": Case(
        "granitemoehybrid",
        {**_GRANITE_HYBRID, **_EXPERTS},
        {**_GRANITE_HYBRID_FIELDS, **_EXPERT_FIELDS},
        turns=True,
    ),
    "granitemoe": Case(
        "granitemoe", {**_SCALES, **_EXPERTS}, {**_SCALE_FIELDS, **_EXPERT_FIELDS}, turns=True
    ),
    "hunyuan-dense": Case("hunyuan_v1_dense", _HEAD, _HEAD_FIELDS),
    "jamba": Case(
        "jamba",
        {
            **{name: value for name, value in _MAMBA_2.items() if "heads" not in name},
            "num_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 32,
        },
        {
            **_EXPERT_FIELDS,
            **{name: value for name, value in _MAMBA_FIELDS.items() if "group" not in name},
            "attention.head_count_kv": [0, KV_HEADS, 0, 0],
            "ssm.time_step_rank": 32,
        },
    ),
    "lfm2": Case("lfm2", _LFM2, _LFM2_FIELDS),
    "lfm2moe": Case(
        "lfm2_moe",
        {
            **_LFM2,
            "num_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "moe_intermediate_size": WIDTH,
            "num_dense_layers": 1,
        },
        {
            **_LFM2_FIELDS,
            **_EXPERT_FIELDS,
            "expert_feed_forward_length": WIDTH,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        },
    ),
    "kimi-linear": Case(
        "kimi_linear",
        {
            "num_key_value_heads": HEADS,
            "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
            "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
            "linear_head_dim": 32,
            "linear_num_heads": HEADS,
            "q_lora_rank": None,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "num_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "moe_intermediate_size": WIDTH,
        },
        {
            **_EXPERT_FIELDS,
            "attention.head_count_kv": [0, 1] * (LAYERS // 2),
            "attention.kv_lora_rank": 64,
            "attention.key_length": 64 + 16,
            "attention.key_length_mla": 32 + 16,
            "attention.value_length_mla": 32,
            "rope.dimension_count": 16,
            "rope.freq_base": 10000.0,
            "ssm.conv_kernel": 4,
            "kda.head_dim": 32,
            "expert_feed_forward_length": WIDTH,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 2.446,
            "expert_gating_func": 2,
        },
        in_rows=True,
    ),
    "mamba": Case(
        "mamba",
        {"state_size": 16, "time_step_rank": 32},
        {
            **_NO_HEADS,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.inner_size": 2 * WIDTH,
            "ssm.time_step_rank": 32,
            "ssm.dt_b_c_rms": False,
        },
    ),
    "mamba2": Case(
        "mamba2",
        {"num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16},
        {**_NO_HEADS, **_MAMBA_FIELDS},
    ),
    "nemotron_h": Case(
        "nemotron_h",
        {
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
        },
        {
            **_NEMOTRON_H_FIELDS,
            "attention.head_count_kv": [0, KV_HEADS, 0, 0],
            "feed_forward_length": [0, 0, INNER, 0],
        },
    ),
    "nemotron_h_moe": Case(
        "nemotron_h",
        {
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "moe_intermediate_size": WIDTH,
            "moe_shared_expert_intermediate_size": INNER,
            "moe_latent_size": 32,
            "routed_scaling_factor": 2.5,
            "n_group": 2,
            "topk_group": 1,
        },
        {
            **_NEMOTRON_H_FIELDS,
            **_EXPERT_FIELDS,
            "attention.head_count_kv": [0, 0, KV_HEADS, 0],
            "feed_forward_length": [0, WIDTH, 0, WIDTH],
            "expert_feed_forward_length": WIDTH,
            "expert_shared_feed_forward_length": INNER,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
            "moe_latent_size": 32,
        },
    ),
    "llama": Case("mixtral", _EXPERTS, _EXPERT_FIELDS, turns=True),
    "llama4": Case(
        "llama4_text",
        {
            **_HEAD,
            **_EXPERTS,
            "intermediate_size": WIDTH,
            "intermediate_size_mlp": INNER,
            "interleave_moe_layer_step": 2,
            "rope_parameters": _SCOUT_ROPE,
        },
        {
            **_HEAD_FIELDS,
            **_EXPERT_FIELDS,
            "expert_feed_forward_length": WIDTH,
            "interleave_moe_layer_step": 2,
            "expert_gating_func": 2,
        },
        tensors={"rope_freqs.weight": [1.0] * 9 + [16.0] * 7},
    ),
    "mistral3": Case(
        "ministral3",
        {
            **_HEAD,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        {
            **_HEAD_FIELDS,
            "attention.temperature_scale": 0.1,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
        turns=True,
    ),
    "minicpm3": Case(
        "minicpm3",
        {
            "num_key_value_heads": HEADS,
            "q_lora_rank": 32,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": WIDTH // HEADS,
        },
        {
            "attention.head_count_kv": HEADS,
            "attention.q_lora_rank": 32,
            "attention.kv_lora_rank": 64,
            "attention.key_length": 32 + 16,
            "rope.dimension_count": 16,
        },
    ),
    "minimax-m2": Case(
        "minimax_m2",
        {**_HEAD, **_EXPERTS, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {
            **_HEAD_FIELDS,
            **_EXPERT_FIELDS,
            "expert_feed_forward_length": INNER,
            "expert_gating_func": 2,
        },
    ),
    "olmo2": Case("olmo3", {"sliding_window": 16}, {"attention.sliding_window": 16}),
    "olmoe": Case("olmoe", {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN}, _EXPERT_FIELDS),
    "phi3": Case(
        "phi3",
        {
            "original_max_position_embeddings": 16,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": _FACTORS[0],
                "long_factor": _FACTORS[1],
            },
        },
        {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.4142135},
        tensors={
            "rope_factors_short.weight": _FACTORS[0],
            "rope_factors_long.weight": _FACTORS[1],
        },
    ),
    "qwen35": Case("qwen3_5_text", _DELTA_NET, {**_DELTA_FIELDS, **_SECTIONS}, norms=True),
    "qwen35moe": Case(
        "qwen3_5_moe_text",
        {**_DELTA_NET, **_SHARED},
        {**_DELTA_FIELDS, **_SECTIONS, **_SHARED_FIELDS, **_RECURRENT},
        norms=True,
    ),
    "qwen3next": Case(
        "qwen3_next",
        {**_DELTA_NET, **_SHARED},
        {**_DELTA_FIELDS, **_SHARED_FIELDS},
        norms=True,
        served_as="qwen3_5_moe_text",
    ),
    "seed_oss": Case("seed_oss", _HEAD, _HEAD_FIELDS),
    "smollm3": Case("smollm3", {}, turns=True),
}
"""By an architecture's name in GGUF."""

GRANITE_HYBRID_DENSE = Case(
    "granitemoehybrid",
    {**_GRANITE_HYBRID, "num_local_experts": 0, "shared_intermediate_size": INNER},
    {**_GRANITE_HYBRID_FIELDS, "expert_shared_feed_forward_length": INNER},
    turns=True,
)
"""Without experts."""
GRANITE_SHARED = Case(
    "granitemoeshared",
    {**_SCALES, **_EXPERTS, "shared_intermediate_size": WIDTH},
    {**_SCALE_FIELDS, **_EXPERT_FIELDS, "expert_shared_feed_forward_length": WIDTH},
    turns=True,
)
"""With an expert that all tokens take."""
DEEPSEEK_V2 = Case(
    "deepseek_v2",
    {**_LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    {
        name: value
        for name, value in _LATENT_FIELDS.items()
        if name not in ("attention.q_lora_rank", "expert_weights_norm", "expert_gating_func")
    },
    in_rows=True,
)
"""Under the same name as DeepSeek V3."""
GEMMA_4_DENSE = Case("gemma4_text", _GEMMA_4, _GEMMA_4_FIELDS, tensors=_GEMMA_4_TENSORS)
"""As 31B."""
GEMMA_4_SHARING = Case(
    "gemma4_text",
    {
        **_GEMMA_4,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCAB_SIZE,
    },
    {
        **_GEMMA_4_FIELDS,
        "attention.head_count_kv": KV_HEADS,
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": 32,
        "feed_forward_length": [INNER] * 2 + [2 * INNER] * 2,
    },
    tensors=_GEMMA_4_TENSORS,
)
"""As E2B."""
GPT_OSS = Case(
    "gpt_oss",
    {
        **_HEAD,
        **_EXPERTS,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
)
"""As a folder alone: its experts' columns are stored as rows, and have biases."""

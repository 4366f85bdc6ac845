"""GGUF files of transformers' own tiny models, written as llama.cpp's converter writes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.loading import gguf_recurrent_written as recurrent
from tests.engine.loading.gguf_files import add_tokenizer

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
            **_HEAD,
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "ssm_state_size": 16,
        },
        {
            **_HEAD_FIELDS,
            **_MAMBA_FIELDS,
            "attention.head_count_kv": [0, KV_HEADS, 0, 0],
            "feed_forward_length": [0, 0, INNER, 0],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.layer_norm_epsilon": 1e-5,
            "rope.scaling.finetuned": False,
        },
    ),
    "llama": Case("mixtral", _EXPERTS, _EXPERT_FIELDS, turns=True),
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


_KEPT = ("ffn_gate_inp", "ssm_a", "ssm_d", "conv1d", "shortconv.conv")
"""Parts of names of tensors that stay in float32."""
_TIED = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gpt2", "lfm2", "lfm2_moe"})


def tiny(case: Case) -> Any:
    """A model of transformers with random weights, in float32."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT_LEN,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    }
    config: Any = AutoConfig.for_model(case.model_type, **{**sizes, **case.settings})
    config.tie_word_embeddings = case.model_type in _TIED
    loader: Any = AutoModelForCausalLM
    generator = torch.Generator().manual_seed(0)
    model = loader.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith(("inv_freq", "mup_vector")) or not weight.ndim:
                continue
            drawn = torch.randn(weight.shape, generator=generator)
            one = weight.ndim == 1 and name.endswith("norm.weight") and not case.norms
            weight.copy_(drawn * 0.2 + 1 if one else drawn * (0.2 if weight.ndim == 1 else 0.08))
    return model


def write_model(path: Path, architecture: str, model: Any, form: str, foretelling: int = 0) -> None:
    """Write a model's file with its matrices in `form`; the model gets the file's numbers.

    `foretelling`: layers behind the model's own.
    """
    case, config = CASES[architecture], model.config
    matrices = gguf.GGMLQuantizationType[form]
    writer = gguf.GGUFWriter(path, architecture)
    _add_fields(writer, architecture, config, case, foretelling)
    add_tokenizer(writer, VOCAB_SIZE)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            for own, part in _parts(_file_name(name, names), weight, config, matrices):
                kept = part.ndim == 1 or any(mark in own for mark in _KEPT)
                kept = kept or part.shape[-1] % 32 > 0
                kind = gguf.GGMLQuantizationType.F32 if kept else matrices
                written = _moved(own, part, case, config)
                if architecture in recurrent.ARCHITECTURES:
                    written = recurrent.written(own, written, architecture, config)
                data = gguf.quantize(written.numpy(), kind)
                writer.add_tensor(own, data, raw_dtype=kind)
                if not kept:
                    rows = part.T if _is_turned(own, case) else part
                    rows.copy_(_rounded(rows, kind))
    for layer in range(foretelling):
        name = f"blk.{config.num_hidden_layers + layer}.attn_norm.weight"
        writer.add_tensor(name, np.ones(WIDTH, np.float32))
    for name, factors in case.tensors.items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(
    writer: gguf.GGUFWriter, architecture: str, config: Any, case: Case, foretelling: int
) -> None:
    writer.add_block_count(config.num_hidden_layers + foretelling)
    if foretelling:
        writer.add_nextn_predict_layers(foretelling)
    writer.add_context_length(CONTEXT_LEN)
    writer.add_embedding_length(WIDTH)
    if "feed_forward_length" not in case.fields:
        writer.add_feed_forward_length(INNER)
    if "attention.head_count" not in case.fields:
        writer.add_head_count(HEADS)
    if "attention.head_count" not in case.fields and "attention.head_count_kv" not in case.fields:
        writer.add_head_count_kv(1 if case.in_rows else HEADS if case.columns_first else KV_HEADS)
    if "attention.layer_norm_rms_epsilon" in case.fields:
        pass
    elif epsilon := getattr(config, "rms_norm_eps", None) or getattr(config, "norm_eps", None):
        writer.add_layer_norm_rms_eps(epsilon)
    else:
        writer.add_layer_norm_eps(
            getattr(config, "layer_norm_eps", None) or config.layer_norm_epsilon
        )
    fields = dict(case.fields)
    if ropes := getattr(config, "rope_parameters", None):
        full = ropes.get("full_attention", ropes)
        fields.setdefault("rope.freq_base", float(full["rope_theta"]))
    for name, value in fields.items():
        add: Any = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}.get(
            type(value), writer.add_array if isinstance(value, list) else writer.add_string
        )
        add(f"{architecture}.{name}", value)


def _file_name(name: str, names: Any) -> str:
    """The name of a weight in a file."""
    layer = name.split(".")[2] if name.startswith(("model.layers.", "backbone.layers.")) else ""
    if name.endswith("feed_forward.expert_bias"):
        return f"blk.{layer}.exp_probs_b.bias"
    if name.endswith("pre_ff_layernorm.weight"):
        return f"blk.{layer}.ffn_norm.weight"
    if name.endswith("e_score_correction_bias"):
        return f"blk.{layer}.exp_probs_b.bias"
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        part = name.rpartition(".")[2].removesuffix("_proj")
        return f"blk.{layer}.ffn_{part}_exps.weight"
    if name.endswith("block_sparse_moe.router.weight"):
        return f"blk.{layer}.ffn_gate_inp.weight"
    if name.endswith(".dt_bias"):
        return f"blk.{layer}.ssm_dt.bias"
    if name.endswith((".A_log", ".D")):
        return f"blk.{layer}.ssm_{'a' if name.endswith('log') else 'd'}"
    if name.endswith("shared_mlp.input_linear.weight"):
        return f"blk.{layer}.shared_gate_up.weight"
    base, _, end = name.rpartition(".")
    older = base.replace("model.", "backbone.", 1)
    return f"{names.get_name(base) or names.get_name(older)}.{end}"


def _rounded(rows: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    """The numbers that a file has of some rows."""
    blocks = gguf.quantize(rows.contiguous().numpy(), kind)
    return torch.from_numpy(gguf.dequantize(blocks, kind))


def _parts(
    name: str, weight: torch.Tensor, config: Any, kind: gguf.GGMLQuantizationType
) -> Iterator[tuple[str, torch.Tensor]]:
    """A file's tensors of one of a model's: gates and what they gate are two for experts, and so
    are products to keys and to values.
    """
    if ".attn_kv_b." in name:
        of_heads = weight.unflatten(0, (HEADS, -1))
        sizes = config.qk_nope_head_dim, config.v_head_dim
        keys, values = of_heads.split(sizes, 1)
        yield name.replace("kv_b", "k_b"), keys.transpose(1, 2)
        yield name.replace("kv_b", "v_b"), values
        return
    if name.endswith(".shared_gate_up.weight"):
        end = "_shexp" if config.num_local_experts else ""
        for part, half in zip(("gate", "up"), weight.chunk(2), strict=True):
            yield name.replace("shared_gate_up", f"ffn_{part}{end}"), half
        return
    if name.endswith("ffn_down_shexp.weight") and not getattr(config, "num_local_experts", 1):
        yield name.replace("_shexp", ""), weight
        return
    if name.endswith(".ssm_in.weight") and config.model_type == "qwen3_next":
        weight.copy_(_rounded(weight, kind))
        yield from recurrent.queries_to_gates(name, weight, config)
        return
    if "gate_up_exps" in name:
        for part, half in zip(("gate", "up"), weight.chunk(2, 1), strict=True):
            yield name.replace("gate_up", part), half
    else:
        yield name, weight


def _is_turned(name: str, case: Case) -> bool:
    """Whether a matrix has its columns first in the model."""
    return case.columns_first and name.startswith("blk.")


def _moved(name: str, part: torch.Tensor, case: Case, config: Any) -> torch.Tensor:
    """Numbers as a file has them."""
    if case.norms and name.endswith("norm.weight") and "ssm_norm" not in name:
        return part + 1
    if part.ndim == 2 and _is_turned(name, case):
        return part.T.contiguous()
    if case.turns and (".attn_q." in name or ".attn_k." in name):
        heads = HEADS if ".attn_q." in name else KV_HEADS
        return part.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()
    return part.contiguous()

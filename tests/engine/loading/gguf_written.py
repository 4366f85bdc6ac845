"""GGUF files of transformers' own tiny models, written as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.loading import gguf_recurrent_written as recurrent
from tests.engine.loading.gguf_cases import (
    CASES,
    CONTEXT_LEN,
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    VOCAB_SIZE,
    WIDTH,
    Case,
)
from tests.engine.loading.gguf_files import add_tokenizer

_OF_NO_MODULE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "self_attn.conv1d.weight": "ssm_conv1d.weight",
    "self_attn.forget_gate.A_log": "ssm_a",
    "self_attn.forget_gate.dt_bias": "ssm_dt.bias",
    "self_attn.forget_gate.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.forget_gate.f_b_proj.weight": "ssm_f_b.weight",
}
"""Weights that converters give names of their own."""
_KEPT = ("ffn_gate_inp", "ssm_a", "ssm_d", "conv1d", "shortconv.conv")
"""Parts of names of tensors that stay in float32."""
_TIED = frozenset(
    {"cohere", "cohere2", "gemma", "gemma2", "gemma4_text", "gpt2", "lfm2", "lfm2_moe"}
)


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
            for own, part in _parts(_file_name(name, names), weight, config, matrices, case.fused):
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
    if name.endswith("pre_ff_layernorm.weight") and not names.get_name(name[: -len(".weight")]):
        return f"blk.{layer}.ffn_norm"  # Falcon-H1's
    if own := _OF_NO_MODULE.get(name.partition(f"layers.{layer}.")[2]):
        return f"blk.{layer}.{own}"
    if name.endswith("e_score_correction_bias"):
        return f"blk.{layer}.exp_probs_b.bias"
    if name.endswith(("experts.gate_up_proj", "experts.up_proj", "experts.down_proj")):
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
    name: str,
    weight: torch.Tensor,
    config: Any,
    kind: gguf.GGMLQuantizationType,
    fused: bool,
) -> Iterator[tuple[str, torch.Tensor]]:
    """A file's tensors of one of a model's: gates and what they gate are two for experts, and so
    are products to keys and to values.
    """
    if ".attn_kv_b." in name and config.model_type != "minicpm3":
        of_heads = weight.unflatten(0, (HEADS, -1))
        sizes = config.qk_nope_head_dim, config.v_head_dim
        keys, values = of_heads.split(sizes, 1)
        yield name.replace("kv_b", "k_b"), keys.transpose(1, 2)
        yield name.replace("kv_b", "v_b"), values
        return
    if name.endswith(".ssm_conv1d.weight") and config.model_type == "kimi_linear":
        for kind, third in zip("qkv", weight.chunk(3), strict=True):
            yield name.replace("conv1d", f"conv1d_{kind}"), third.reshape(1, -1, 1, weight.shape[2])
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
    if "_exps." in name and config.model_type == "llama4_text":
        weight = weight.transpose(1, 2)  # columns are rows in the model
    if "gate_up_exps" in name and not fused:
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

"""Writes a float32 GGUF file of a Llama, a Qwen3 mixture or a Gemma 3, for llama.cpp.

One tensor is in memory at a time, or one of all experts. The tokenizer must split text as Llama 3
does, as that of `benchmarks.peers.model` does.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
SPLIT = "llama-bpe"
ROTATED = ("self_attn.q_proj", "self_attn.k_proj")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def write_gguf(folder: Path, target: Path) -> None:
    """Write `target` of the model in `folder`. Raises ValueError for a tensor of another kind."""
    config: Any = AutoConfig.from_pretrained(folder)
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _add_shape(writer, config, folder.name)
    _add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in _weights(folder):
        wanted = names.get_name(name, try_suffixes=(".weight",))
        if wanted is None:
            raise ValueError(f"{name} is no tensor of a {config.model_type}")
        num_bytes = 4 * weight.numel()
        writer.add_tensor_info(wanted, tuple(weight.shape), np.dtype(np.float32), num_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, weight in _weights(folder):
        numbers = _reordered(name, weight.float(), config)
        if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
            numbers = numbers + 1  # as transformers does when it computes
        writer.write_tensor_data(numbers.numpy())
    writer.close()


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder, in the order of its files; those of experts as one."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found: dict[str, list[str]] = {}
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                found.setdefault(_EXPERT.sub(".experts.", name), []).append(name)
            for merged, names in found.items():
                stored = [file.get_tensor(name) for name in sorted(names, key=_number)]
                yield merged, stored[0] if merged in names else torch.stack(stored)


def _number(name: str) -> int:
    """Which expert's a tensor is."""
    found = _EXPERT.search(name)
    return int(found[1]) if found else 0


def _reordered(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """Queries and keys with their rows in llama.cpp's order.

    Its rotation turns neighbouring rows of a head together, transformers' turns those that lie
    half a head apart.
    """
    if config.model_type != "llama" or not any(part in name for part in ROTATED):
        return weight.contiguous()
    half = config.head_dim // 2
    parts = weight.reshape(-1, 2, half, weight.shape[1])
    return parts.transpose(1, 2).reshape(weight.shape).contiguous()


def _add_shape(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    """What the model's configuration says."""
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type != "llama":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: Any) -> None:
    """The byte-level BPE, token by token."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in stored["added_tokens"]}
    by_id = {number: token for token, number in stored["model"]["vocab"].items()} | special
    tokens = [by_id[number] for number in range(config.vocab_size)]
    kinds = [
        gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL
        for number in range(config.vocab_size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_pad_token_id(config.pad_token_id)
    writer.add_add_bos_token(True)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())

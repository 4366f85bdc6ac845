"""Writes a float32 GGUF file of a Llama, for llama.cpp.

One tensor is in memory at a time. The tokenizer must split text as Llama 3 does, as that of
`benchmarks.peers.model` does.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig

SPLIT = "llama-bpe"
ROTATED = ("self_attn.q_proj", "self_attn.k_proj")


def write_gguf(folder: Path, target: Path) -> None:
    """Write `target` of the model in `folder`. Raises ValueError for a tensor of another kind."""
    config: Any = AutoConfig.from_pretrained(folder)
    architecture = gguf.MODEL_ARCH.LLAMA
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _add_shape(writer, config, folder.name)
    add_tokenizer(writer, folder, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in _weights(folder):
        wanted = names.get_name(name, try_suffixes=(".weight",))
        if wanted is None:
            raise ValueError(f"{name} is no tensor of a Llama")
        num_bytes = 4 * weight.numel()
        writer.add_tensor_info(wanted, tuple(weight.shape), np.dtype(np.float32), num_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, weight in _weights(folder):
        writer.write_tensor_data(_reordered(name, weight.float(), config).numpy())
    writer.close()


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder, in the order of its files."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                yield name, file.get_tensor(name)


def _reordered(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """Queries and keys with their rows in llama.cpp's order.

    Its rotation turns neighbouring rows of a head together, transformers' turns those that lie
    half a head apart.
    """
    if not any(part in name for part in ROTATED):
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
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int) -> None:
    """Add the byte-level BPE, token by token; its first two tokens begin and end a text."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in stored["added_tokens"]}
    by_id = {number: token for token, number in stored["model"]["vocab"].items()} | special
    tokens = [by_id[number] for number in range(vocab_size)]
    kinds = [
        gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL
        for number in range(vocab_size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
    writer.add_add_bos_token(True)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())

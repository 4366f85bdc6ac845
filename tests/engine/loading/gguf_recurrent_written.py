"""Tensors of recurrent layers as llama.cpp's converter writes them."""

from collections.abc import Iterator
from typing import Any

import torch

_MOVES_VALUES = ("qwen35", "qwen35moe")
_OF_QWEN = (*_MOVES_VALUES, "qwen3next")
_MAMBA_2 = ("falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe")
ARCHITECTURES = (*_OF_QWEN, *_MAMBA_2, "jamba", "kimi-linear", "lfm2", "lfm2moe", "mamba")


def written(name: str, part: torch.Tensor, architecture: str, config: Any) -> torch.Tensor:
    """Numbers of a tensor that the model has as `part`."""
    if name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight")):
        part = part.squeeze(1)
    if name.endswith(".ssm_a"):
        part = -part.exp()
    if name.endswith((".ssm_a", ".ssm_d")) and architecture in _MAMBA_2:
        part = part[:, None]
    if name.endswith("ssm_norm.weight") and architecture in _MAMBA_2:
        groups = getattr(config, "mamba_n_groups", None) or config.n_groups
        part = part.view(groups, -1)
    if name.endswith("ffn_gate_inp_shexp.weight") and architecture == "qwen35moe":
        part = part.squeeze(0)
    if architecture in _MOVES_VALUES and name.startswith("blk."):
        part = _values_apart(name, part, config)
    if architecture == "falcon-h1":
        part = part * _multiplier(name, config)
    return part.contiguous()


def _multiplier(name: str, config: Any) -> float | torch.Tensor:
    """The factor that a file of Falcon-H1 has in a weight."""
    kind = name.removesuffix(".weight").split(".")[-1]
    if kind == "ssm_in":
        inner, of_groups = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        sizes = torch.tensor([inner, inner, of_groups, of_groups, config.mamba_n_heads])
        each = torch.tensor(config.ssm_multipliers).repeat_interleave(sizes)
        return each[:, None] * float(config.ssm_in_multiplier)
    factors: dict[str, float] = {
        "attn_q": config.attention_in_multiplier,
        "attn_k": config.attention_in_multiplier * config.key_multiplier,
        "attn_v": config.attention_in_multiplier,
        "attn_output": config.attention_out_multiplier,
        "ffn_down": config.mlp_multipliers[1],
        "ffn_gate": config.mlp_multipliers[0],
        "output": config.lm_head_multiplier,
        "ssm_out": config.ssm_out_multiplier,
        "token_embd": config.embedding_multiplier,
    }
    return factors.get(kind, 1.0)


def _values_apart(name: str, part: torch.Tensor, config: Any) -> torch.Tensor:
    """Heads of values that share a head of keys are not neighbours in a file."""
    kind = name.split(".")[2]
    first = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if kind in ("attn_qkv", "ssm_conv1d"):
        return torch.cat((part[:first], _apart(part[first:], config)))
    if kind in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"):
        return _apart(part, config)
    return _apart(part.T, config).T if kind == "ssm_out" else part


def _apart(rows: torch.Tensor, config: Any) -> torch.Tensor:
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    heads = rows.unflatten(0, (keys, values // keys, len(rows) // values))
    return heads.transpose(0, 1).flatten(0, 2)


def queries_to_gates(
    name: str, weight: torch.Tensor, config: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """Qwen3-Next's joint projection, whose rows are grouped by heads of keys, as two tensors."""
    keys, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
    of_values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    heads = weight.unflatten(0, (keys, -1)).split([key_dim, key_dim, of_values, of_values], 1)
    *first, gates = (part.flatten(0, 1) for part in heads)
    yield name.replace("ssm_in", "attn_qkv"), torch.cat(first)
    yield name.replace("ssm_in", "attn_gate"), gates

"""Tensors of recurrent layers as llama.cpp's converter writes them."""

from collections.abc import Iterator
from typing import Any

import torch

ARCHITECTURES = ("granitehybrid", "qwen35", "qwen35moe", "qwen3next")
_MOVES_VALUES = ("qwen35", "qwen35moe")


def written(name: str, part: torch.Tensor, architecture: str, config: Any) -> torch.Tensor:
    """Numbers of a tensor that the model has as `part`."""
    if name.endswith("ssm_conv1d.weight"):
        part = part.squeeze(1)
    if name.endswith((".ssm_a", ".ssm_d")):
        part = -part.exp() if name.endswith("a") else part
        if architecture not in ("qwen35", "qwen35moe", "qwen3next"):
            part = part[:, None]
    if name.endswith("ssm_norm.weight") and architecture == "granitehybrid":
        part = part.view(config.mamba_n_groups, -1)
    if name.endswith("ffn_gate_inp_shexp.weight"):
        part = part.squeeze(0)
    if architecture in _MOVES_VALUES and name.startswith("blk."):
        part = _values_apart(name, part, config)
    return part.contiguous()


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

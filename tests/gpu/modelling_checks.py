"""The small fused kernels against what transformers' own modules compute."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3 import modeling_qwen3

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Norm
from tests.gpu.attempts import attempted
from tests.gpu.kernel_checks import distance
from tests.gpu.kernel_shapes import BF16, FP32

LIMITS = {FP32: 1e-5, BF16: 0.02}
"""The bound of `distance`. transformers rounds after each operation, and angles to the states'
type, too."""
TOKENS, WIDTH = 6, 64


def modelling_checks(device: str) -> Iterator[Check]:
    """Llama's norm and MLP, Qwen 3's norms over heads and its turning."""
    for dtype in (FP32, BF16):
        kind = str(dtype).removeprefix("torch.")
        for name, check in (("llama", _llama), ("qwen3", _qwen3)):
            with torch.no_grad():
                checks = partial(check, f"{name} {kind}", dtype, device)
                yield from attempted(f"{name} {kind}", checks)


def _llama(name: str, dtype: torch.dtype, device: str) -> Iterator[Check]:
    norm = _scattered(LlamaRMSNorm(WIDTH, 1e-5)).to(device, dtype)
    states, added = _states(2, TOKENS, WIDTH).to(device, dtype)
    expected = norm(states + added)
    got = kernels.add_norm(states, added, norm.weight, norm.variance_epsilon)
    yield Check(f"{name} norm", distance(got, expected), LIMITS[dtype])
    mlp = LlamaMLP(LlamaConfig(hidden_size=WIDTH, intermediate_size=96)).to(device, dtype)
    both = torch.cat((mlp.gate_proj(states), mlp.up_proj(states)), -1)
    got = mlp.down_proj(kernels.silu_mul(both))
    yield Check(f"{name} mlp", distance(got, mlp(states)), LIMITS[dtype])


def _qwen3(name: str, dtype: torch.dtype, device: str) -> Iterator[Check]:
    """Turned queries, and keys as they lie in the pool."""
    sizes: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 80}
    config = Qwen3Config(hidden_size=WIDTH, **sizes)
    attention = _scattered(modeling_qwen3.Qwen3Attention(config, 0)).to(device, dtype)
    rotary = modeling_qwen3.Qwen3RotaryEmbedding(config).to(device)
    projected = _states(TOKENS, 8, 80).to(device, dtype)
    positions = torch.tensor([[0, 1, 15, 16, 1000, 30_000]], device=device)
    query = attention.q_norm(projected[:, :4]).transpose(0, 1).unsqueeze(0)
    key = attention.k_norm(projected[:, 4:6]).transpose(0, 1).unsqueeze(0)
    angles = rotary(projected, positions)
    query, key = modeling_qwen3.apply_rotary_pos_emb(query, key, *angles)
    norms = [
        Norm(norm.weight, norm.variance_epsilon) for norm in (attention.q_norm, attention.k_norm)
    ]
    cos, sin = (part[0] for part in rotary(projected.float(), positions))
    cache = PagedKV(1, 1, 8, 2, 80, dtype, torch.device(device))
    blocks = torch.zeros(TOKENS, dtype=torch.int32, device=device)
    offsets = torch.arange(TOKENS, dtype=torch.int32, device=device)
    heads = Heads(4, 2, 80, 1.0, *norms)
    kernels.place(projected, cos, sin, cache.blocks, None, 0, blocks, offsets, heads)
    got = projected[:, :4].transpose(0, 1)
    yield Check(f"{name} queries", distance(got, query[0]), LIMITS[dtype])
    got = cache.blocks[0, 0, 0, :TOKENS].transpose(0, 1)
    yield Check(f"{name} keys", distance(got, key[0]), LIMITS[dtype])


def _states(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 2


def _scattered(module: Any) -> Any:
    """A module whose norms' weights are not all one."""
    chance = torch.Generator().manual_seed(8)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(False)
        if "norm" in name or parameter.dim() == 1:
            parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=chance))
    return module

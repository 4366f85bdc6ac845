"""The shapes of today's models, small, as GGUF files tell them: fields, and tensors by name.

Speed does not depend on what weights say: `benchmarks.peers.shape_files` draws them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

VOCAB_SIZE, CONTEXT = 8192, 2048
Sides = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A model: its architecture's name in GGUF, fields, tensors (rows first), formats to compare.

    A field without a dot belongs to the architecture as well.
    """

    architecture: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, Sides]
    formats: tuple[str, ...] = ("q8_0", "q4_k_m")


def _attention(
    width: int, heads: int, kv_heads: int, head_dim: int, gated: bool = False
) -> dict[str, Sides]:
    """Matrices of one layer's attention; gates of its output lie beside the queries."""
    return {
        "attn_q.weight": (heads * head_dim * (1 + gated), width),
        "attn_k.weight": (kv_heads * head_dim, width),
        "attn_v.weight": (kv_heads * head_dim, width),
        "attn_output.weight": (width, heads * head_dim),
    }


def _gated(width: int, inner: int, end: str = "", *experts: int) -> dict[str, Sides]:
    """Matrices of one layer's MLP, or of all its experts."""
    sides = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    return {f"ffn_{name}{end}.weight": (*experts, *side) for name, side in sides.items()}


def _norms(size: int, *names: str) -> dict[str, Sides]:
    return {f"{name}.weight": (size,) for name in names}


def _biases(tensors: Mapping[str, Sides]) -> dict[str, Sides]:
    return {name.replace("weight", "bias"): sides[:-1] for name, sides in tensors.items()}


def _named(
    width: int, layers: Iterator[Mapping[str, Sides]], tied: bool = False
) -> dict[str, Sides]:
    """All tensors of a file, by their whole names."""
    found: dict[str, Sides] = {"token_embd.weight": (VOCAB_SIZE, width)}
    for number, layer in enumerate(layers):
        found |= {f"blk.{number}.{name}": sides for name, sides in layer.items()}
    found["output_norm.weight"] = (width,)
    return found if tied else {**found, "output.weight": (VOCAB_SIZE, width)}


def _fields(layers: int, width: int, heads: int, kv_heads: Any, head_dim: int) -> dict[str, Any]:
    return {
        "block_count": layers,
        "context_length": CONTEXT,
        "embedding_length": width,
        "vocab_size": VOCAB_SIZE,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head_dim,
        "rope.freq_base": 1e6,
    }


def _experts(count: int, chosen: int, inner: int) -> dict[str, Any]:
    return {
        "expert_count": count,
        "expert_used_count": chosen,
        "expert_feed_forward_length": inner,
        "feed_forward_length": inner,
    }


def _gemma() -> Shape:
    """Gemma 3's: 87 million weights, ten of twelve layers with a window."""
    width, inner, heads, kv_heads, head_dim = 768, 2048, 4, 1, 256
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    layer = {
        **_attention(width, heads, kv_heads, head_dim),
        **_gated(width, inner),
        **_norms(width, *norms),
        **_norms(head_dim, "attn_q_norm", "attn_k_norm"),
    }
    fields = _fields(12, width, heads, kv_heads, head_dim)
    fields |= {"feed_forward_length": inner, "attention.sliding_window": 512}
    return Shape("gemma3", fields, _named(width, iter([layer] * 12), tied=True))


def _gpt_oss() -> Shape:
    """gpt-oss-20b's: 346 million weights, 32 experts of which a token takes 4."""
    width, heads, kv_heads, head_dim, count = 768, 16, 2, 64, 32
    matrices = {
        **_attention(width, heads, kv_heads, head_dim),
        **_gated(width, width, "_exps", count),
        "ffn_gate_inp.weight": (count, width),
    }
    layer = {
        **matrices,
        **_biases(matrices),
        **_norms(width, "attn_norm", "post_attention_norm"),
        "attn_sinks.weight": (heads,),
    }
    fields = {
        **_fields(6, width, heads, kv_heads, head_dim),
        **_experts(count, 4, width),
        "attention.sliding_window": 128,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": CONTEXT // 32,
    }
    return Shape("gpt-oss", fields, _named(width, iter([layer] * 6)), ("mxfp4", "q8_0", "q4_k_m"))


def _qwen3_moe() -> Shape:
    """Qwen3-30B-A3B's: 418 million weights, 128 experts of which a token takes 8."""
    width, inner, heads, kv_heads, head_dim, count = 512, 256, 8, 2, 64, 128
    layer = {
        **_attention(width, heads, kv_heads, head_dim),
        **_gated(width, inner, "_exps", count),
        "ffn_gate_inp.weight": (count, width),
        **_norms(width, "attn_norm", "ffn_norm"),
        **_norms(head_dim, "attn_q_norm", "attn_k_norm"),
    }
    fields = {**_fields(8, width, heads, kv_heads, head_dim), **_experts(count, 8, inner)}
    return Shape("qwen3moe", fields, _named(width, iter([layer] * 8)))


def _qwen35_moe() -> Shape:
    """Qwen3.6-35B-A3B's: 227 million weights, three layers of four with gated delta nets."""
    width, inner, count, heads, kv_heads, head_dim = 512, 256, 64, 4, 1, 128
    key_heads, value_heads, state = 4, 8, 128
    keys, values = key_heads * state, value_heads * state
    mlp = {
        **_gated(width, inner, "_exps", count),
        **_gated(width, inner, "_shexp"),
        "ffn_gate_inp.weight": (count, width),
        "ffn_gate_inp_shexp.weight": (width,),
        **_norms(width, "attn_norm", "post_attention_norm"),
    }
    delta = {
        "attn_qkv.weight": (2 * keys + values, width),
        "attn_gate.weight": (values, width),
        "ssm_conv1d.weight": (2 * keys + values, 4),
        "ssm_dt.bias": (value_heads,),
        "ssm_a": (value_heads,),
        "ssm_beta.weight": (value_heads, width),
        "ssm_alpha.weight": (value_heads, width),
        "ssm_norm.weight": (state,),
        "ssm_out.weight": (width, values),
        **mlp,
    }
    full = {
        **_attention(width, heads, kv_heads, head_dim, gated=True),
        **_norms(head_dim, "attn_q_norm", "attn_k_norm"),
        **mlp,
    }
    fields = {
        **_fields(8, width, heads, kv_heads, head_dim),
        **_experts(count, 8, inner),
        "expert_shared_feed_forward_length": inner,
        "full_attention_interval": 4,
        "rope.dimension_count": head_dim // 4,
        "rope.dimension_sections": [6, 5, 5, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": values,
        "ssm.state_size": state,
        "ssm.time_step_rank": value_heads,
        "ssm.group_count": key_heads,
    }
    layers = (full if layer % 4 == 3 else delta for layer in range(8))
    return Shape("qwen35moe", fields, _named(width, layers))


def _granite_hybrid() -> Shape:
    """Granite 4 H's: 222 million weights, nine layers of ten with Mamba 2."""
    width, inner, shared, count, heads, kv_heads, head_dim = 768, 256, 512, 32, 12, 4, 64
    state, mamba_heads, size, whole = 128, 24, 1536, 5
    mlp = {
        **_gated(width, inner, "_exps", count),
        **_gated(width, shared, "_shexp"),
        "ffn_gate_inp.weight": (count, width),
        **_norms(width, "attn_norm", "ffn_norm"),
    }
    mamba = {
        "ssm_in.weight": (2 * size + 2 * state + mamba_heads, width),
        "ssm_conv1d.weight": (size + 2 * state, 4),
        "ssm_conv1d.bias": (size + 2 * state,),
        "ssm_dt.bias": (mamba_heads,),
        "ssm_a": (mamba_heads, 1),
        "ssm_d": (mamba_heads, 1),
        "ssm_norm.weight": (1, size),
        "ssm_out.weight": (width, size),
        **mlp,
    }
    full = {**_attention(width, heads, kv_heads, head_dim), **mlp}
    by_layer = [kv_heads if layer == whole else 0 for layer in range(10)]
    fields = {
        **_fields(10, width, heads, by_layer, head_dim),
        **_experts(count, 6, inner),
        "expert_shared_feed_forward_length": shared,
        "attention.scale": 1 / head_dim,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": 6.0,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": size,
        "ssm.state_size": state,
        "ssm.time_step_rank": mamba_heads,
        "ssm.group_count": 1,
    }
    layers = (full if layer == whole else mamba for layer in range(10))
    return Shape("granitehybrid", fields, _named(width, layers, tied=True))


SHAPES = {
    "gemma3": _gemma(),
    "gpt-oss": _gpt_oss(),
    "qwen3moe": _qwen3_moe(),
    "qwen35moe": _qwen35_moe(),
    "granitehybrid": _granite_hybrid(),
}

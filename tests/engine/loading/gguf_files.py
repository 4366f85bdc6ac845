"""Small GGUF files with random weights, written by gguf itself, in any format and mix of them."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, GgufConfig

WIDTH, INNER, HEADS, KV_HEADS, LAYERS, VOCAB_SIZE, CONTEXT_LEN = 256, 512, 4, 2, 2, 300, 256
HEAD_DIMS = {"llama": 64, "qwen2": 64, "qwen3": 128, "gemma3": 64}
HEAD_DIMS |= {"qwen2moe": 64, "qwen3moe": 128, "gpt-oss": 64}
MIXTURES = ("qwen2moe", "qwen3moe", "gpt-oss")
EXPERTS, CHOSEN, EXPERT_INNER, SHARED_INNER = 6, 2, 256, 512

Choose = Callable[[str], str]
"""From the name of a tensor to its format."""

_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S"), (0,)),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("IQ1_M", "NVFP4"), ()),
}
"""The places of float16 numbers in blocks that the gguf package does not quantise."""


def write(
    path: Path,
    choose: Choose,
    architecture: str = "llama",
    tied: bool = False,
    rope_factors: np.ndarray | None = None,
    heads: tuple[int, int] = (HEADS, KV_HEADS),
    put: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
    add: Mapping[str, np.ndarray] | None = None,
    skip: Collection[str] = (),
    parts_of: int = 0,
) -> Path:
    """A file whose matrices have the formats that `choose` says; `heads`: of queries and keys.

    `put` and `drop` fields, `add` tensors in float32 and `skip` others; `parts_of` so many tensors
    each the file is split into.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts_of)
    _add_sizes(writer, architecture, heads)
    add_tokenizer(writer)
    rng = np.random.default_rng(len(architecture) + tied)
    for name, value in (put or {}).items():
        writer.kv_data[0].pop(name, None)
        put_field(writer, name, value)
    for name in drop:
        del writer.kv_data[0][name]
    for name, shape in _tensors(architecture, tied, heads):
        if name in skip:
            continue
        _add(writer, name, shape, choose(name), rng)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    for name, numbers in (add or {}).items():
        writer.add_tensor(name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, architecture: str, heads: tuple[int, int]) -> None:
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT_LEN)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads[0])
    writer.add_head_count_kv(heads[1])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(HEAD_DIMS[architecture])
    writer.add_vocab_size(VOCAB_SIZE)
    if architecture == "gemma3":
        writer.add_key_length(HEAD_DIMS[architecture])
        writer.add_sliding_window(CONTEXT_LEN)
    if architecture in ("qwen3", "qwen3moe", "gpt-oss"):
        writer.add_key_length(HEAD_DIMS[architecture])
    if architecture == "gpt-oss":
        writer.add_value_length(HEAD_DIMS[architecture])
        writer.add_sliding_window(16)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(64)
    if architecture in MIXTURES:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(CHOSEN)
        writer.add_expert_feed_forward_length(EXPERT_INNER)


def put_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """A field of the kind that its value has."""
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def unpacked(path: Path) -> Any:
    """transformers' own model of a file, in float32."""
    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        attn_implementation="eager",
    ).eval()


def _tensors(
    architecture: str, tied: bool, heads: tuple[int, int]
) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (VOCAB_SIZE, WIDTH)),
        ("output_norm.weight", (WIDTH,)),
    ]
    if not tied:
        found.append(("output.weight", (VOCAB_SIZE, WIDTH)))
    head_dim = HEAD_DIMS[architecture]
    rows = {"attn_q": heads[0] * head_dim, "attn_k": heads[1] * head_dim}
    rows["attn_v"] = rows["attn_k"]
    for layer in range(LAYERS):
        for name, count in rows.items():
            found.append((f"blk.{layer}.{name}.weight", (count, WIDTH)))
            if architecture in ("qwen2", "qwen2moe", "gpt-oss"):
                found.append((f"blk.{layer}.{name}.bias", (count,)))
        found += [
            (f"blk.{layer}.attn_output.weight", (WIDTH, heads[0] * head_dim)),
            (f"blk.{layer}.attn_norm.weight", (WIDTH,)),
            (f"blk.{layer}.{_SECOND_NORMS.get(architecture, 'ffn_norm')}.weight", (WIDTH,)),
        ]
        if architecture == "gpt-oss":
            found.append((f"blk.{layer}.attn_output.bias", (WIDTH,)))
            found.append((f"blk.{layer}.attn_sinks.weight", (heads[0],)))
        found += [(f"blk.{layer}.{name}", shape) for name, shape in _mlp(architecture)]
        if architecture in ("qwen3", "gemma3", "qwen3moe"):
            norms = ("attn_q_norm", "attn_k_norm")
            found += [(f"blk.{layer}.{name}.weight", (head_dim,)) for name in norms]
        if architecture == "gemma3":
            norms = ("post_attention_norm", "post_ffw_norm")
            found += [(f"blk.{layer}.{name}.weight", (WIDTH,)) for name in norms]
    return found


_SECOND_NORMS = {"gpt-oss": "post_attention_norm"}


def _mlp(architecture: str) -> list[tuple[str, tuple[int, ...]]]:
    if architecture not in MIXTURES:
        return _gated("", INNER)
    found = [(name, (EXPERTS, *shape)) for name, shape in _gated("_exps", EXPERT_INNER)]
    found.append(("ffn_gate_inp.weight", (EXPERTS, WIDTH)))
    if architecture == "qwen2moe":
        found += [*_gated("_shexp", SHARED_INNER), ("ffn_gate_inp_shexp.weight", (WIDTH,))]
    if architecture == "gpt-oss":
        biases = [(name.replace("weight", "bias"), shape[:2]) for name, shape in found]
        found += [(name, shape if "exps" in name else shape[:1]) for name, shape in biases]
    return found


def _gated(end: str, inner: int) -> list[tuple[str, tuple[int, ...]]]:
    sides = {"gate": (inner, WIDTH), "up": (inner, WIDTH), "down": (WIDTH, inner)}
    return [(f"ffn_{name}{end}.weight", shape) for name, shape in sides.items()]


def _add(
    writer: gguf.GGUFWriter,
    name: str,
    shape: tuple[int, ...],
    form: str,
    rng: np.random.Generator,
) -> None:
    kept = len(shape) == 1 or "ffn_gate_inp" in name or name.endswith("bias")
    if kept:  # as llama.cpp keeps them
        writer.add_tensor(name, rng.normal(1, 0.2, shape).astype(np.float32))
        return
    kind = gguf.GGMLQuantizationType[form]
    if form in _SCALES:
        data = _random_blocks(form, shape, rng)
    else:
        data = gguf.quantize(rng.normal(0, 0.1, shape).astype(np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def _random_blocks(form: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Bytes of any value: gguf reads these formats and writes none of them."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block_len * block_bytes), np.uint8)
    blocks = data.reshape(-1, block_bytes)
    for at in _SCALES[form]:
        numbers = rng.uniform(1e-4, 4e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = numbers.view(np.uint8)
    if form == "IQ1_M":
        put_scattered(blocks, rng.uniform(1e-4, 4e-4, (len(blocks), 1)))
    return data


def put_scattered(blocks: np.ndarray, scales: np.ndarray) -> None:
    """Put scales [blocks, 1] where IQ1_M has them: four bits above those of each of four words."""
    words = blocks[:, 48:56].copy().view(np.uint16) & 0x0FFF
    places = np.array([12, 8, 4, 0], np.uint16)
    parts = (scales.astype(np.float16).view(np.uint16) << places) & 0xF000
    blocks[:, 48:56] = (words | parts).view(np.uint8)


def add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int = VOCAB_SIZE) -> None:
    """A tokenizer of single letters and one merge."""
    letters = [chr(code) for code in range(33, 127)] + [chr(code) for code in range(161, 400)]
    tokens = ["<|begin|>", "<|end|>", "ab", *letters][:vocab_size]
    kinds = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (vocab_size - 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

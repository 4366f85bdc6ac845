"""Five small models and a mixture in every format of quantised weights that is served.

Their numbers are random.

GGUF files are written by gguf. Checkpoints are bytes of any value in the layouts of their tools:
that these mean what the tools read of them is shown by `tests/engine/loading/test_checkpoints.py`.
What `model.quantize` makes is made of a plain folder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from daemon.engine.loading.convert import convert
from daemon.engine.loading.requantise import requantise
from daemon.models.embedded import ensure_converted
from tests.engine.loading import gguf_files
from tests.engine.quantised.test_models import unpacked

_COMMON: dict[str, Any] = {
    "vocab_size": gguf_files.VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "max_position_embeddings": gguf_files.CONTEXT_LEN,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


class Model(NamedTuple):
    """One of them: as a configuration of transformers, and as a GGUF file's."""

    config: PreTrainedConfig
    architecture: str
    tied: bool
    heads: tuple[int, int]


def _model(kind: Any, architecture: str, tied: bool, heads: tuple[int, int], **own: Any) -> Model:
    numbers = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    config = kind(**_COMMON, **numbers, tie_word_embeddings=tied, **own)
    return Model(config, architecture, tied, heads)


MODELS = {
    "llama, grouped queries": _model(LlamaConfig, "llama", False, (4, 2), head_dim=32),
    "llama, tied, one key head": _model(LlamaConfig, "llama", True, (8, 1), head_dim=16),
    "qwen2, biases": _model(Qwen2Config, "qwen2", False, (4, 4), use_sliding_window=False),
    "qwen3, norms of queries": _model(Qwen3Config, "qwen3", True, (4, 2), head_dim=64),
    "gemma": _model(GemmaConfig, "gemma3", True, (4, 1), head_dim=32),
    "qwen3, experts": _model(
        Qwen3MoeConfig,
        "qwen3moe",
        False,
        (4, 2),
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        norm_topk_prob=True,
    ),
}

GGUF = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "Q4_K_M"),
)
OWN = ("int8", "int4", "fp8")  # of model.quantize

_Chance = np.random.Generator
_Tensors = dict[str, torch.Tensor]
_Pack = Callable[[_Chance, int, int], _Tensors]
"""The stored part of a layer's rows and columns."""
_GROUP = 32


def _words(chance: _Chance, *shape: int, low: int = 0, span: int = 0xFFFFFFFF) -> torch.Tensor:
    """int32 of any bits within `span`, above `low`."""
    drawn = chance.integers(0, 2**32, shape, np.uint32) & np.uint32(span)
    return torch.from_numpy((drawn + np.uint32(low)).view(np.int32))


def _scales(chance: _Chance, *shape: int, size: float = 0.04) -> torch.Tensor:
    return torch.from_numpy(np.asarray(chance.uniform(size / 2, size, shape), np.float32))


def _zeros(chance: _Chance, *shape: int, lowest: int = 7) -> torch.Tensor:
    """Half bytes of two values each, near the middle."""
    return _words(chance, *shape, low=0x11111111 * lowest, span=0x11111111)


def _awq(chance: _Chance, rows: int, columns: int) -> _Tensors:
    groups = columns // _GROUP
    return {
        "qweight": _words(chance, columns, rows // 8),
        "qzeros": _zeros(chance, groups, rows // 8),
        "scales": _scales(chance, groups, rows).half(),
    }


def _gptq(chance: _Chance, rows: int, columns: int) -> _Tensors:
    groups = columns // _GROUP
    order = chance.permutation(columns) // _GROUP
    return {
        "qweight": _words(chance, columns // 8, rows),
        "qzeros": _zeros(chance, groups, rows // 8, lowest=6),
        "scales": _scales(chance, groups, rows).half(),
        "g_idx": torch.from_numpy(order.astype(np.int32)),
    }


def _gptq_8(chance: _Chance, rows: int, columns: int) -> _Tensors:
    return {
        "qweight": _words(chance, columns // 4, rows),
        "qzeros": _words(chance, 1, rows // 4, low=0x7E7E7E7E, span=0x01010101),
        "scales": _scales(chance, 1, rows, size=2.5e-3).half(),
        "g_idx": torch.zeros(columns, dtype=torch.int32),
    }


def _packed(chance: _Chance, rows: int, columns: int) -> _Tensors:
    groups = columns // _GROUP
    return {
        "weight_packed": _words(chance, rows, columns // 8),
        "weight_scale": _scales(chance, rows, groups).bfloat16(),
        "weight_shape": torch.tensor([rows, columns]),
        "weight_zero_point": _zeros(chance, rows // 8, groups),
    }


def _int8(chance: _Chance, rows: int, columns: int) -> _Tensors:
    numbers = chance.integers(-127, 128, (rows, columns), np.int8)
    scales = _scales(chance, rows, 1, size=2.5e-3).bfloat16()
    return {"weight": torch.from_numpy(numbers), "weight_scale": scales}


def _fp8_rows(chance: _Chance, rows: int, columns: int) -> _Tensors:
    return {
        "weight": _e4m3(chance, rows, columns),
        "weight_scale": _scales(chance, rows, 1, size=6e-3).bfloat16(),
    }


def _fp8_blocks(chance: _Chance, rows: int, columns: int) -> _Tensors:
    scales = _scales(chance, -(-rows // _GROUP), -(-columns // _GROUP), size=6e-3)
    return {"weight": _e4m3(chance, rows, columns), "weight_scale_inv": scales}


def _nvfp4(chance: _Chance, rows: int, columns: int) -> _Tensors:
    """Tensor scales differ between layers that a model computes together."""
    return {
        "weight": torch.from_numpy(chance.integers(0, 256, (rows, columns // 2), np.uint8)),
        "weight_scale": _e4m3(chance, rows, columns // 16).abs(),
        "weight_scale_2": _scales(chance, size=2e-3),
        "input_scale": torch.tensor(0.01),
    }


def _e4m3(chance: _Chance, rows: int, columns: int) -> torch.Tensor:
    numbers = torch.from_numpy(chance.normal(0, 30, (rows, columns)))
    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn)


def _compressed(form: str, weights: dict[str, Any], rounds_to: str = "") -> dict[str, Any]:
    states = {"num_bits": 8, "type": rounds_to, "strategy": "token", "dynamic": True}
    given = states if rounds_to else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": given}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def _gptq_said(bits: int, group: int, act_order: bool) -> dict[str, Any]:
    said = {"bits": bits, "group_size": group, "desc_act": act_order, "sym": False}
    return {**said, "lm_head": False, "quant_method": "gptq", "checkpoint_format": "gptq"}


_ROWS = {"num_bits": 8, "strategy": "channel"}
_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": _GROUP}
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.gate"]}
_AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CHECKPOINTS: dict[str, tuple[dict[str, Any], _Pack]] = {
    "AWQ": ({**_AWQ, "group_size": _GROUP}, _awq),
    "GPTQ, in an order": (_gptq_said(4, _GROUP, act_order=True), _gptq),
    "GPTQ, 8 bits": (_gptq_said(8, -1, act_order=False), _gptq_8),
    "W4A16": (_compressed("pack-quantized", {**_GROUPS, "symmetric": False}), _packed),
    "W8A8": (_compressed("int-quantized", {**_ROWS, "type": "int"}, "int"), _int8),
    "FP8, rows": (_compressed("float-quantized", {**_ROWS, "type": "float"}, "float"), _fp8_rows),
    "FP8, blocks": ({**_FP8, "weight_block_size": [_GROUP, _GROUP]}, _fp8_blocks),
    "NVFP4": (_NVFP4, _nvfp4),
}
FORMS = (*GGUF, *CHECKPOINTS, *OWN)


def write(name: str, form: str, folder: Path) -> tuple[Path, Any]:
    """A model's folder as a worker loads it, and transformers' own model of the same numbers."""
    model = MODELS[name]
    if form in GGUF:
        return _gguf(model, form, folder)
    made = folder / "model"
    if form in OWN:
        plain = save_plain(_random(model.config), folder / "plain")
        requantise(plain, made, form, lambda _share: None)
    else:
        checkpoint(model, form, made)
    return made, unpacked(made)


def save_plain(model: Any, folder: Path) -> Path:
    """A folder of plain weights in float32."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def _gguf(model: Model, form: str, folder: Path) -> tuple[Path, Any]:
    def medium(name: str) -> str:
        more = "attn_v" in name or "ffn_down" in name or name == "output.weight"
        return "Q6_K" if more else "Q4_K"

    choose = medium if form == "Q4_K_M" else lambda _name: form
    shape = model.architecture, model.tied
    path = gguf_files.write(folder / "tiny.gguf", choose, *shape, heads=model.heads)
    made = ensure_converted(path, folder / "cache", convert, lambda _share: None)
    # transformers reads the widths of experts from no file.
    experts = model.architecture.endswith("moe")
    return made, unpacked(made) if experts else gguf_files.unpacked(path)


def _random(config: PreTrainedConfig) -> Any:
    """A model whose norms and biases say something too."""
    torch.manual_seed(len(str(config)))
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.0 if "bias" in name else parameter.mean().item(), 0.2)
    return model


def checkpoint(model: Model, form: str, folder: Path) -> None:
    """Write a folder whose linear layers, but for the head, are random blocks."""
    said, pack = CHECKPOINTS[form]
    chance = np.random.default_rng(len(form))
    plain = _random(model.config)
    layers = {
        name: (layer.out_features, layer.in_features)
        for name, layer in plain.named_modules()
        if type(layer) is nn.Linear and name != "lm_head"
    }
    tensors = {
        name: tensor.detach().bfloat16()
        for name, tensor in plain.named_parameters()
        if name.removesuffix(".weight") not in layers and ".experts." not in name
    }
    for name, module in plain.named_modules():
        if name.endswith(".experts"):
            layers |= _of_experts(name, *module.down_proj.shape)
    for name, sides in layers.items():
        stored = pack(chance, *sides)
        tensors |= {f"{name}.{what}": one.contiguous() for what, one in stored.items()}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {**plain.config.to_dict(), "quantization_config": said, "dtype": "bfloat16"}
    config["architectures"] = [type(plain).__name__]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")


def _of_experts(name: str, count: int, width: int, inner: int) -> dict[str, tuple[int, int]]:
    sides = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    experts = ((f"{name}.{expert}", one) for expert in range(count) for one in sides)
    return {f"{expert}.{one}_proj": sides[one] for expert, one in experts}

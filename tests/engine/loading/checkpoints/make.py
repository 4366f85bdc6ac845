"""Writes the quantised checkpoints beside it, each by the code of its format's own tool.

`python -m tests.engine.loading.checkpoints.make`, where autoawq 0.2.9, gptqmodel 7.7.0,
compressed-tensors 0.20.0 and transformers can be imported; no test needs more than the files.
Beside the weights lies `numbers.json`: what each tool itself reads of them, as a digest of the
bytes in the type that it computes in.

What each tool quantises is small and random, with scales and zero points as a tool without
calibration finds them: the files are about layouts, not about models. Folders that are named
`model-...` are whole models.
"""

import hashlib
import importlib
import json
import shutil
import sys
import types
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
NUMBERS = "numbers.json"
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
SMALL = {"self_attn.q_proj": (32, 32), "mlp.down_proj": (40, 96)}

Tensors = dict[str, torch.Tensor]
Quantise = Callable[[nn.Linear], tuple[Tensors, torch.Tensor]]
"""The stored tensors of a layer, and the numbers [N, K] that they represent."""


def tool(name: str) -> Any:
    """A module of a tool, which is not there where tests run."""
    return importlib.import_module(name)


def bare(name: str, inner: str) -> None:
    """Let parts of a package be imported without it: whole packages want data sets and more."""
    if name in sys.modules:
        places = sys.modules[name].__path__
    else:
        found = find_spec(name)
        assert found is not None and found.submodule_search_locations is not None
        places = found.submodule_search_locations
    path = next(iter(places))
    for part in ("", *inner.split(".")):
        name, path = (f"{name}.{part}", f"{path}/{part}") if part else (name, path)
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__path__ = [path]


def _awq(group: int) -> Quantise:
    bare("awq", "modules.linear")
    gemm, packing = tool("awq.modules.linear.gemm"), tool("awq.utils.packing_utils")

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        scales, zeros = found_scales(layer.weight, group, 15)
        packed = gemm.WQLinear_GEMM.from_linear(layer, 4, group, False, scales.T, zeros.T)
        parts = [packed.qweight, packed.qzeros, packed.scales]
        numbers = packing.dequantize_gemm(*parts, 4, group).T
        return dict(zip(("qweight", "qzeros", "scales"), parts, strict=True)), numbers

    return quantise


def _gptq(bits: int, group: int, *, symmetric: bool, shuffled: bool, lowered: bool) -> Quantise:
    linear, model = tool("gptqmodel.nn_modules.qlinear.torch"), tool("gptqmodel.utils.model")
    own = types.SimpleNamespace(bits=bits, pack_dtype=torch.int32)

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        columns, rows = layer.in_features, layer.out_features
        most = (1 << bits) - 1
        order = torch.randperm(columns) if shuffled else torch.arange(columns)
        groups = torch.empty(columns, dtype=torch.int32)
        groups[order] = (torch.arange(columns) // (group if group > 0 else columns)).int()
        sorted_weight = layer.weight[:, order]
        size = group if group > 0 else columns
        scales, zeros = found_scales(sorted_weight, size, most, symmetric=symmetric)
        made = linear.TorchLinear(
            bits=bits, group_size=group, sym=symmetric, desc_act=shuffled,
            in_features=columns, out_features=rows, bias=False,
        )  # fmt: skip
        made.pack_original(layer, scales, zeros, groups)
        made.post_init()
        if lowered:
            model.convert_gptq_v2_to_v1_format_module(made, own)
        parts = {name: getattr(made, name).clone() for name in ("qweight", "qzeros", "scales")}
        if lowered:
            model.convert_gptq_v1_to_v2_format_module(made, bits, torch.int32)
        return {**parts, "g_idx": groups}, made.dequantize_weight().T

    return quantise


def _compressed(form: str, weights: dict[str, Any]) -> Quantise:
    tensors = tool("compressed_tensors")
    quantization = tool("compressed_tensors.quantization")
    helpers = tool("compressed_tensors.quantization.utils")
    compressor = tool("compressed_tensors.compressors").BaseCompressor
    assert tensors is not None
    args = quantization.QuantizationArgs(**weights)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        weight = layer.weight.bfloat16()
        low, high = _edges(weight, args)
        scale, zero = helpers.calculate_qparams(low, high, args)
        given = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        own = compressor.get_value_from_registry(form)
        stored = own.compress(given, scheme)
        return stored, own.decompress(dict(stored), scheme)["weight"]

    return quantise


def _edges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest number for each scale."""
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return weight.min().view(1), weight.max().view(1)
    if args.strategy == "block":
        down, across = args.block_structure
        padded = nn.functional.pad(weight, (0, -columns % across, 0, -rows % down))
        cut = padded.unflatten(1, (-1, across)).unflatten(0, (-1, down))
        return cut.amin((1, 3)), cut.amax((1, 3))
    cut = weight.view(rows, -1, args.group_size if args.strategy == "group" else columns)
    return cut.amin(2), cut.amax(2)


def _fp8(block: tuple[int, int] | None) -> Quantise:
    fp8 = tool("transformers.integrations.finegrained_fp8")
    config = types.SimpleNamespace(weight_block_size=block, scale_fmt="float")
    own = types.SimpleNamespace(quantization_config=config)

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        stored = fp8.Fp8Quantize(own).convert({"weight": layer.weight.detach()})
        numbers = fp8.Fp8Dequantize(own)._dequantize_one(*stored.values())
        return {name.rpartition(".")[2]: one for name, one in stored.items()}, numbers

    return quantise


def found_scales(
    weight: torch.Tensor, group: int, most: int, symmetric: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [N, groups] that let each group's least and greatest numbers in."""
    cut = weight.view(len(weight), -1, group)
    if symmetric:
        scales = cut.abs().amax(2) * 2 / most
        return scales, torch.full_like(scales, (most + 1) // 2)
    low, high = cut.amin(2).clamp(max=0), cut.amax(2).clamp(min=0)
    scales = ((high - low) / most).half().float()
    return scales, (-(low / scales).round()).clamp(0, most)


def _layers(shapes: Mapping[str, tuple[int, int]]) -> dict[str, nn.Linear]:
    """Random layers; one in eight rows has no number below zero, so that zero points are 0."""
    made = {}
    for name, (rows, columns) in shapes.items():
        layer = nn.Linear(columns, rows, bias=False)
        layer.weight.requires_grad_(False)
        nn.init.normal_(layer.weight, std=0.1)
        layer.weight[::8] = layer.weight[::8].abs()
        made[f"model.layers.0.{name}"] = layer
    return made


def write(
    name: str, quantise: Quantise, said: dict[str, Any],
    shapes: Mapping[str, tuple[int, int]] | None = None,
) -> None:  # fmt: skip
    """One folder; without `shapes` a whole model."""
    torch.manual_seed(len(name))
    config, tensors = dict(_CONFIG), dict[str, torch.Tensor]()
    if shapes is None:
        model = LlamaForCausalLM(LlamaConfig(**config, dtype="bfloat16")).float()
        layers = {one: la for one, la in model.named_modules() if type(la) is nn.Linear}
        head = layers.pop("lm_head")
        tensors = {
            one: weight.detach().bfloat16() for one, weight in model.named_parameters()
            if not any(one.startswith(f"{layer}.") for layer in layers) and weight is not head
        }  # fmt: skip
        for layer in layers.values():
            layer.weight.requires_grad_(False)
            nn.init.normal_(layer.weight, std=0.1)
            layer.weight[::8] = layer.weight[::8].abs()
    else:
        layers = _layers(shapes)
    numbers = {}
    for module, layer in layers.items():
        stored, found = quantise(layer)
        tensors |= {f"{module}.{what}": one.contiguous() for what, one in stored.items()}
        numbers[f"{module}.weight"] = _digest(found)
    config |= {"dtype": "bfloat16", "quantization_config": said}
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n")


def _digest(numbers: torch.Tensor) -> list[str]:
    """The type of numbers, and the digest of their bytes."""
    data = numbers.contiguous().view(torch.uint8).numpy().tobytes()
    return [str(numbers.dtype).removeprefix("torch."), hashlib.sha256(data).hexdigest()]


def _compressed_said(form: str, weights: dict[str, Any], states: Any = None) -> dict[str, Any]:
    quantization = tool("compressed_tensors.quantization")
    group = {"targets": ["Linear"], "weights": weights, "input_activations": states}
    whole = quantization.QuantizationConfig(
        config_groups={"group_0": group}, format=form, ignore=["lm_head"],
        quantization_status="compressed",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(whole.model_dump_json())
    return found


def _gptq_said(bits: int, group: int, *, symmetric: bool, shuffled: bool, lowered: bool) -> Any:
    return {
        "bits": bits, "group_size": group, "desc_act": shuffled, "sym": symmetric,
        "lm_head": False, "quant_method": "gptq", "pack_dtype": "int32",
        "checkpoint_format": "gptq" if lowered else "gptq_v2",
        "meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.05},
    }  # fmt: skip


def main() -> None:
    """Write all folders."""
    awq = {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    awq_said = {**awq, "quant_method": "awq", "modules_to_not_convert": None}
    write("model-awq", _awq(32), awq_said)
    for name, gptq in (
        ("model-gptq-order", (4, 32, False, True, True)),
        ("gptq-symmetric", (4, 32, True, False, True)),
        ("gptq-v2-rows", (4, -1, False, False, False)),
        ("gptq-8-order", (8, 32, False, True, True)),
    ):
        bits, group, symmetric, shuffled, lowered = gptq
        how = {"symmetric": symmetric, "shuffled": shuffled, "lowered": lowered}
        shapes = None if name.startswith("model") else SMALL
        write(name, _gptq(bits, group, **how), _gptq_said(bits, group, **how), shapes)
    groups = {"type": "int", "strategy": "group", "group_size": 32}
    rounded = {"num_bits": 8, "strategy": "token", "dynamic": True}
    rounded_fp8 = {**rounded, "type": "float"}
    for name, form, weights, states in (
        ("model-w4a16-zeros", "pack-quantized", {"num_bits": 4, "symmetric": False} | groups, None),
        ("w4a16", "pack-quantized", {"num_bits": 4} | groups, None),
        ("w8a16-rows", "pack-quantized", {"num_bits": 8, "strategy": "channel"}, None),
        ("w8a16-zeros", "pack-quantized", {"num_bits": 8, "symmetric": False} | groups, None),
        ("model-w8a8", "int-quantized", {"num_bits": 8, "strategy": "channel"}, rounded),
        ("w8a8-zeros", "int-quantized",
         {"num_bits": 8, "strategy": "tensor", "symmetric": False}, rounded),
        ("fp8-rows", "float-quantized",
         {"num_bits": 8, "type": "float", "strategy": "channel"}, rounded_fp8),
        ("fp8-tensor", "float-quantized",
         {"num_bits": 8, "type": "float", "strategy": "tensor"}, rounded_fp8),
        ("fp8-blocks", "float-quantized",
         {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
         rounded_fp8),
    ):  # fmt: skip
        shapes = None if name.startswith("model") else SMALL
        said = _compressed_said(form, weights, states)
        write(name, _compressed(form, weights), said, shapes)
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": None}
    blocks = {**fp8, "weight_block_size": [32, 32]}
    write("model-fp8", _fp8((32, 32)), blocks)
    write("fp8-whole", _fp8(None), {**fp8, "weight_block_size": None}, SMALL)


if __name__ == "__main__":
    main()

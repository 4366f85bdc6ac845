"""Writes checkpoints beside it by older tools, which had layouts that today's no longer write.

`python -m tests.engine.loading.checkpoints.make_older`, where auto-gptq 0.6.0 and
compressed-tensors 0.9.4 can be imported. See `tests.engine.loading.checkpoints.make`.
"""

from typing import Any

import torch
from torch import nn

from tests.engine.loading.checkpoints.make import Quantise, Tensors, bare, found_scales, tool, write

_SHAPES = {"self_attn.q_proj": (32, 64), "mlp.down_proj": (64, 96)}


def _order(columns: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns in another order, and int32 [columns]: the group of each column."""
    order = torch.randperm(columns)
    groups = torch.empty(columns, dtype=torch.int32)
    groups[order] = (torch.arange(columns) // group).int()
    return order, groups


def _auto_gptq(group: int) -> Quantise:
    bare("auto_gptq", "nn_modules.qlinear")
    linear = tool("auto_gptq.nn_modules.qlinear.qlinear_cuda")

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        columns, rows = layer.in_features, layer.out_features
        order, groups = _order(columns, group)
        scales, zeros = found_scales(layer.weight[:, order], group, 15, symmetric=True)
        made = linear.QuantLinear(4, group, columns, rows, bias=False)
        layer.weight.data = layer.weight.half()
        made.pack(layer, scales, zeros, groups)
        # It has no function for the numbers: states that are one at each column give them.
        numbers = made(torch.eye(columns).half()).T
        return {name: one.clone() for name, one in made.named_buffers()}, numbers

    return quantise


def _reordered(args: dict[str, Any]) -> Quantise:
    compressors = tool("compressed_tensors.compressors")
    quantization = tool("compressed_tensors.quantization")
    helpers = tool("compressed_tensors.quantization.utils")
    forward = tool("compressed_tensors.quantization.lifecycle.forward")
    how = quantization.QuantizationArgs(**args)

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        weight, group = layer.weight.bfloat16(), args["group_size"]
        order, groups = _order(layer.in_features, group)
        cut = weight[:, order].view(len(weight), -1, group)
        scale, zero = helpers.calculate_qparams(cut.amin(2), cut.amax(2), how)
        given = {"zero_point": zero, "g_idx": groups, "args": how}
        packing = compressors.PackedQuantizationCompressor()
        stored = packing.compress_weight(weight, scale, how, zero, groups)
        stored |= {"weight_scale": scale, "weight_g_idx": groups}
        whole = forward.quantize(weight, scale, dtype=torch.int8, **given)
        return stored, forward.dequantize(whole, scale, **given)

    return quantise


def main() -> None:
    """Write all folders."""
    said = {
        "bits": 4, "group_size": 32, "damp_percent": 0.1, "desc_act": True, "static_groups": False,
        "sym": True, "true_sequential": True, "model_name_or_path": None,
        "model_file_base_name": "model", "quant_method": "gptq",
    }  # fmt: skip
    write("gptq-of-2023", _auto_gptq(32), said, _SHAPES)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    weights |= {"symmetric": False, "actorder": "group"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    reordered = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "quantization_status": "compressed", "global_compression_ratio": 1.4,
    }  # fmt: skip
    write("w4a16-order", _reordered(weights), reordered, _SHAPES)


if __name__ == "__main__":
    main()

"""Writes checkpoints in NVFP4 beside it, by compressed-tensors and by ModelOpt.

`python -m tests.engine.loading.checkpoints.make_fp4`, where compressed-tensors 0.20.1 and
nvidia-modelopt 0.47.0 can be imported. See `tests.engine.loading.checkpoints.make`. The tools have
a zero with a sign, which llmd does not keep: their numbers are written without.
"""

import sys
from typing import Any

import torch
from torch import nn

from tests.engine.loading.checkpoints.make import Quantise, Tensors, bare, tool, write

_GROUP = 16
_UNCALLED = (
    *("fp4_compatible", "reduce_amax", "reduce_block_amax", "reduce_block_padding"),
    *("patch_fsdp_mp_dtypes", "fsdp2_aware_weight_update"),
)
"""Functions that ModelOpt's quantising needs, of which nothing is called here."""
_SMALL = {"self_attn.q_proj": (32, 32), "mlp.down_proj": (40, 192), "mlp.up_proj": (9, 384)}


def _compressed(said: dict[str, Any]) -> Quantise:
    quantization = tool("compressed_tensors.quantization")
    helpers = tool("compressed_tensors.quantization.utils")
    forward = tool("compressed_tensors.quantization.lifecycle.forward")
    packing = tool("compressed_tensors.compressors.nvfp4.helpers")
    compressor = tool("compressed_tensors.compressors").BaseCompressor
    (group,) = said["config_groups"].values()
    scheme = quantization.QuantizationScheme(**group)
    own = compressor.get_value_from_registry("nvfp4-pack-quantized")

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        weight = layer.weight.bfloat16()
        whole = helpers.generate_gparam(weight.min(), weight.max()).view(1)
        cut = weight.view(len(weight), -1, _GROUP)
        scale, _ = helpers.calculate_qparams(cut.amin(2), cut.amax(2), scheme.weights, whole)
        given = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
        stored = own.compress(given, scheme)
        if scheme.input_activations is not None:
            stored["input_global_scale"] = torch.tensor([321.0])
        # Its own function rounds to bfloat16 at the end, where a last bit would not be seen.
        pairs = stored["weight_packed"]
        found = packing.unpack_fp4_from_uint8(pairs, *weight.shape, dtype=torch.float32)
        scales = {"scale": stored["weight_scale"].float(), "global_scale": whole}
        numbers = forward.dequantize(found, args=scheme.weights, dtype=torch.float32, **scales)
        rounded = own.decompress(dict(stored), scheme)["weight"]
        assert torch.equal(rounded, numbers.bfloat16())
        return stored, numbers + 0.0

    return quantise


def _modelopt() -> Quantise:
    for part in ("qtensor", "utils", "backends", "backends.utils"):
        bare("modelopt", f"torch.quantization.{part}")
    utils = sys.modules["modelopt.torch.quantization.utils"]
    backends = sys.modules["modelopt.torch.quantization.backends.utils"]
    for function in _UNCALLED:
        setattr(utils, function, None)
        setattr(backends, function, None)
    tensors = tool("modelopt.torch.quantization.qtensor.nvfp4_tensor")

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        weight = layer.weight.bfloat16().float()
        whole = weight.abs().max() / (6.0 * 448.0)
        most = weight.unflatten(1, (-1, _GROUP)).abs().amax(2)
        scale = (most / (6.0 * whole)).to(torch.float8_e4m3fn)
        each = (scale.float() * whole).repeat_interleave(_GROUP, 1)
        codes = tensors.NVFP4QTensor._cast_fp4(weight / each)
        pairs = (codes[..., 1::2] << 4) | codes[..., 0::2]
        made = tensors.NVFP4QTensor(weight.shape, torch.float32, pairs)
        sizes = {"scale": scale, "double_scale": whole, "block_sizes": {-1: _GROUP}}
        stored = {"weight": pairs, "weight_scale": scale, "weight_scale_2": whole}
        stored["input_scale"] = torch.tensor(0.003)
        return stored, made.dequantize(torch.float32, **sizes) + 0.0

    return quantise


def main() -> None:
    """Write all folders."""
    weights = {
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": _GROUP,
        "symmetric": True, "dynamic": False, "observer": "static_minmax",
        "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn",
    }  # fmt: skip
    states = {**weights, "dynamic": "local"}
    for name, of_states in (("model-nvfp4", states), ("nvfp4a16", None)):
        group = {"targets": ["Linear"], "weights": weights, "input_activations": of_states}
        said = {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "version": "0.20.1",
            "quantization_status": "compressed", "kv_cache_scheme": None,
        }  # fmt: skip
        write(name, _compressed(said), said, None if name.startswith("model") else _SMALL)
    numbers = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": _GROUP}
    group = {"targets": ["Linear"], "weights": numbers, "input_activations": numbers}
    said = {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "producer": {"name": "modelopt", "version": "0.47.0"},
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    }  # fmt: skip
    write("model-modelopt", _modelopt(), said)
    write("modelopt-fp4", _modelopt(), said, _SMALL)


if __name__ == "__main__":
    main()

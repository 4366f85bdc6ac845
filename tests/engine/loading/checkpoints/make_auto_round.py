"""Writes checkpoints of AutoRound beside it, by its own layers.

`python -m tests.engine.loading.checkpoints.make_auto_round`, where auto-round 0.16.1 can be
imported. See `tests.engine.loading.checkpoints.make`.
"""

import sys
from typing import Any

import torch
from torch import nn

from tests.engine.loading.checkpoints.make import (
    Quantise,
    Tensors,
    bare,
    found_scales,
    tool,
    write,
)

_SHAPES = {"self_attn.q_proj": (32, 32), "mlp.down_proj": (64, 96)}
_MORE_BITS = "down_proj"
"""The layers that have 8 bits where all others have 4."""


def _auto_round(module: str, group: int, *, symmetric: bool, mixed: bool = False) -> Quantise:
    bare("auto_round", "utils")
    bare("auto_round_extension", "torch")
    sys.modules["auto_round.utils"].get_packing_device = lambda _device: "cpu"  # type: ignore[attr-defined]
    linear = tool(f"auto_round_extension.torch.{module}")

    def quantise(layer: nn.Linear) -> tuple[Tensors, torch.Tensor]:
        bits = 8 if mixed and layer.in_features > layer.out_features else 4
        scales, zeros = found_scales(layer.weight, group, (1 << bits) - 1, symmetric=symmetric)
        zeros = zeros.clamp(min=1)  # of 0 its first layout makes another number
        made = linear.QuantLinear(bits, group, layer.in_features, layer.out_features, False)
        made.dequant_dtype, made.device = torch.int32, "cpu"
        made.pack(layer, scales, zeros, None)
        # It has no function for the numbers: states that are one at each column give them.
        numbers = made(torch.eye(layer.in_features).half()).T
        return {name: one.clone() for name, one in made.named_buffers()}, numbers

    return quantise


def main() -> None:
    """Write all folders."""
    said: dict[str, Any] = {
        "quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "int",
        "autoround_version": "0.16.1", "iters": 200, "block_name_to_quantize": "model.layers",
    }  # fmt: skip
    gptq = {**said, "sym": True, "packing_format": "auto_round:auto_gptq"}
    extra = {f".*{_MORE_BITS}": {"bits": 8}}
    own = {**said, "sym": False, "packing_format": "auto_round"}
    mixed = _auto_round("qlinear_torch_zp", 32, symmetric=True, mixed=True)
    write("model-auto-round", mixed, {**gptq, "extra_config": extra})
    write("auto-round-zeros", _auto_round("qlinear_torch", 32, symmetric=False), own, _SHAPES)


if __name__ == "__main__":
    main()

"""What a GGUF file's tensors say of its model beside their numbers, and no field does.

These are widths of experts, and which layers have biases.
"""

import re
from typing import Any

_WIDTHS = {
    ".ffn_gate_exps.weight": "moe_intermediate_size",
    ".ffn_gate_shexp.weight": "shared_expert_intermediate_size",
}
"""By how a tensor's name ends, what its rows are called in a configuration."""
_BIASES = {
    "attention_bias": re.compile(r"blk\.\d+\.attn_(q|k|v|output)\.bias"),
    "mlp_bias": re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.bias"),
}
"""By what a configuration calls it: tensors of which there are none without."""


def put_tensors(config: Any, tensors: Any) -> None:
    """Put what a file's tensors say into its configuration."""
    for tensor in tensors:
        for end, field in _WIDTHS.items():
            if tensor.name.endswith(end) and hasattr(config, field):
                setattr(config, field, int(tensor.shape[1]))
    for field, name in _BIASES.items():
        if hasattr(config, field):
            setattr(config, field, any(name.fullmatch(one.name) for one in tensors))

"""Widths of experts, which a GGUF file's tensors say and transformers' reading of it leaves out."""

from typing import Any

_WIDTHS = {
    ".ffn_gate_exps.weight": "moe_intermediate_size",
    ".ffn_gate_shexp.weight": "shared_expert_intermediate_size",
}
"""By how a tensor's name ends, what its rows are called in a configuration."""


def expert_widths(config: Any, tensors: Any) -> None:
    """Put the widths of a file's experts into its configuration, where it has some."""
    for tensor in tensors:
        for end, field in _WIDTHS.items():
            if tensor.name.endswith(end) and hasattr(config, field):
                setattr(config, field, int(tensor.shape[1]))

"""The recurrent layers that a loaded model has, as kernels of states are tried in their sizes."""

from typing import Any

from torch import nn

from daemon.engine.layers.delta_net import is_delta_net, is_woven_net
from daemon.engine.layers.kimi_delta import is_kimi_delta
from daemon.engine.layers.mamba import has_parts
from daemon.engine.layers.mamba_1 import is_mamba_1
from daemon.engine.layers.short_convolution import is_short_convolution
from daemon.engine.verify.kernels.subject import (
    CHANNELS_DECAY,
    HEADS_DECAY,
    SCANS_CHANNELS,
    SCANS_HEADS,
    RecurrentSizes,
)


def recurrent_layers(model: nn.Module) -> tuple[RecurrentSizes, ...]:
    """The sizes of a model's recurrent layers, each once; of those alone that transformers has."""
    found = {sizes for module in model.modules() if (sizes := _sizes(module)) is not None}
    return tuple(sorted(found, key=repr))


def _sizes(module: Any) -> RecurrentSizes | None:
    """Those of a layer that a module of transformers is; None: of none that is known."""
    if is_delta_net(module) or is_woven_net(module):
        heads = HEADS_DECAY, module.num_v_heads, module.num_k_heads
        matrix = module.head_k_dim, module.head_v_dim
    elif is_kimi_delta(module):
        heads = CHANNELS_DECAY, module.num_heads, module.num_heads
        matrix = module.head_dim, module.head_dim
    elif has_parts(module):
        heads = SCANS_HEADS, module.num_heads, module.n_groups
        matrix = module.head_dim, module.ssm_state_size
    elif is_mamba_1(module):
        heads = SCANS_CHANNELS, len(module.conv1d.weight), 1
        matrix = 1, module.ssm_state_size
    elif is_short_convolution(module):
        num_channels, taps = _convolution(module.conv)
        return RecurrentSizes(num_channels=num_channels, taps=taps)
    else:
        return None
    rule, num_heads, num_shared = heads
    num_channels, taps = _convolution(module.conv1d)
    return RecurrentSizes(
        num_channels=num_channels,
        taps=taps,
        rule=rule,
        num_heads=num_heads,
        num_shared=num_shared,
        sizes=matrix,
    )


def _convolution(layer: nn.Conv1d) -> tuple[int, int]:
    """Its channels and taps."""
    return layer.weight.shape[0], layer.weight.shape[2]

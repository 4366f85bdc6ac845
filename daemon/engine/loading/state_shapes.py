"""The state that recurrent layers keep of a sequence, as transformers' configurations say it."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.state_layout import CONV, SSM, StatePart
from daemon.models.rank_shares import channel_shares
from daemon.models.resolved import RECURRENT
from daemon.models.shape import ModelError

_ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention", "hybrid"})
"""transformers' names of layers with keys and values; a hybrid one has both, side by side."""

Parts = tuple[StatePart, ...]


def layer_states(config: Any, kinds: Sequence[str]) -> tuple[Parts, ...]:
    """The parts that each layer keeps, by the layers' kinds; empty without recurrent layers.

    Raises ModelError where the configuration has no sizes for it.
    """
    parts_of = _PARTS.get(str(config.model_type))
    if parts_of is None or not RECURRENT & set(kinds):
        return ()
    try:
        parts = tuple(part for part in parts_of(config) if part.unit_numbers)
        fits = all(part.num_units > 0 and part.unit_numbers > 0 for part in parts)
    except (AttributeError, TypeError):
        fits = False
    if not fits:
        raise ModelError("the sizes of its recurrent layers are no whole numbers above 0")
    return tuple(parts if kind in RECURRENT else () for kind in kinds)


def keys_of_kinds(heads: KVHeads, kinds: Sequence[str]) -> list[KVHeads]:
    """The heads of keys of a model's layers, of which only those with attention have any."""
    return [heads if kind in _ATTENDING else NO_KEYS for kind in kinds]


def _convolution(num_channels: int, kernel_len: int, num_shares: int) -> StatePart:
    """The inputs that the next token's convolution sees beside the token's own."""
    return StatePart(CONV, num_channels, kernel_len - 1, num_shares=num_shares)


def _matrices(num_units: int, unit_numbers: int, num_shares: int) -> StatePart:
    """The part that a recurrence carries on, in float32."""
    return StatePart(SSM, num_units, unit_numbers, is_float32=True, num_shares=num_shares)


def _check_shared(num_heads: int, count: int, what: str) -> None:
    """Raise ModelError where heads do not share `count` of something evenly."""
    if count < 1 or num_heads % count:
        raise ModelError(f"the {num_heads} heads of its recurrent layers share {count} {what}")


def _delta_net(config: Any) -> Parts:
    """A gated delta net's: queries, keys and values through one convolution, and a matrix of keys
    by values for each head of values.
    """
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    num_keys, num_values = config.linear_num_key_heads, config.linear_num_value_heads
    _check_shared(num_values, num_keys, "heads of keys")
    channels = 2 * num_keys * key_dim + num_values * value_dim
    return (
        _convolution(channels, config.linear_conv_kernel_dim, num_keys),
        _matrices(num_values, key_dim * value_dim, num_keys),
    )


def _kimi_delta(config: Any) -> Parts:
    """As a gated delta net's, with as many heads of keys as of values."""
    num_heads, dim = config.linear_num_heads, config.linear_head_dim
    convolution = _convolution(3 * num_heads * dim, config.linear_conv_kernel_dim, num_heads)
    return convolution, _matrices(num_heads, dim * dim, num_heads)


def _mamba_2(num_heads: int, head_dim: int, num_groups: int, state_len: int, kernel: int) -> Parts:
    """Mamba 2's: inputs and their groups' B and C through one convolution; a matrix for a head."""
    _check_shared(num_heads, num_groups, "groups")
    of_groups = 2 * num_groups * state_len
    convolution = _convolution(num_heads * head_dim + of_groups, kernel, num_heads)
    matrices = _matrices(num_heads, head_dim * state_len, num_heads)
    return (
        msgspec.structs.replace(convolution, num_groups=num_groups, group_units=of_groups),
        msgspec.structs.replace(matrices, num_groups=num_groups),
    )


def _bamba(config: Any) -> Parts:
    return _mamba_2(
        config.mamba_n_heads,
        config.mamba_d_head,
        config.mamba_n_groups,
        config.mamba_d_state,
        config.mamba_d_conv,
    )


def _nemotron_h(config: Any) -> Parts:
    heads = config.mamba_num_heads, config.mamba_head_dim
    return _mamba_2(*heads, config.n_groups, config.ssm_state_size, config.conv_kernel)


def _mamba_2_alone(config: Any) -> Parts:
    heads = config.num_heads, config.head_dim
    return _mamba_2(*heads, config.n_groups, config.state_size, config.conv_kernel)


def _mamba_1(num_channels: int, state_len: int, kernel_len: int) -> Parts:
    """Mamba 1's: a row for each channel."""
    shares = channel_shares(num_channels)
    rows = _matrices(num_channels, state_len, shares)
    return _convolution(num_channels, kernel_len, shares), rows


def _mamba(config: Any) -> Parts:
    return _mamba_1(config.intermediate_size, config.state_size, config.conv_kernel)


def _jamba(config: Any) -> Parts:
    channels = config.mamba_expand * config.hidden_size
    return _mamba_1(channels, config.mamba_d_state, config.mamba_d_conv)


def _short_convolution(config: Any) -> Parts:
    width = config.hidden_size
    return (_convolution(width, config.conv_L_cache, channel_shares(width)),)


_PARTS: dict[str, Callable[[Any], Parts]] = {
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "kimi_linear": _kimi_delta,
    "bamba": _bamba,
    "granitemoehybrid": _bamba,
    "falcon_h1": _bamba,
    "nemotron_h": _nemotron_h,
    "mamba2": _mamba_2_alone,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "jamba": _jamba,
    "lfm2": _short_convolution,
    "lfm2_moe": _short_convolution,
}

"""A rank's part of a recurrent layer: some heads of keys with the heads of values that they serve.

A gated delta net has one state for each head of values, and its convolution one for each channel of
queries, keys and values; so all of it is cut by heads, and its output is a sum over all ranks. A
short convolution (LFM2) is cut by channels.
"""

from typing import Any, NamedTuple

from daemon.engine.layers.delta_net import is_delta_net, is_woven_net
from daemon.engine.layers.short_convolution import is_short_convolution
from daemon.engine.quantised.cut import Cut
from daemon.models.rank_shares import Range, channel_shares, state_shares


class NetCuts(NamedTuple):
    """The cuts of a recurrent layer."""

    cuts: dict[str, Cut]  # by parameter
    summed: str  # the layer whose output is a part of a sum, its inputs being `inner`
    inner: Range
    inner_size: int  # of all ranks
    sizes: dict[str, int]  # attributes of the module that count what it has


def is_shared_net(module: Any) -> bool:
    """Whether ranks share a recurrent layer of transformers."""
    return is_delta_net(module) or is_woven_net(module) or is_short_convolution(module)


def net_cuts(net: Any, rank: int, world_size: int) -> NetCuts:
    """The cuts of such a layer for a rank. Raises ModelError."""
    if not is_short_convolution(net):
        return _delta_cuts(net, state_shares(net.num_k_heads, world_size)[rank])
    width = net.conv.weight.shape[0]
    count = channel_shares(width)
    return _channel_cuts(net, state_shares(count, world_size)[rank].times(width // count), width)


def _channel_cuts(net: Any, own: Range, width: int) -> NetCuts:
    """The cuts of a short convolution: gates of inputs, of outputs, and inputs are its rows."""
    parts = (Range(part * width + own.first, part * width + own.last) for part in range(3))
    rows, channels = Cut(0, tuple(parts)), Cut(0, (own,))
    cuts = {"in_proj.weight": rows, "conv.weight": channels, "out_proj.weight": Cut(1, (own,))}
    for layer, cut in (("in_proj", rows), ("conv", channels)):
        if getattr(net, layer).bias is not None:
            cuts[f"{layer}.bias"] = cut
    return NetCuts(cuts, "out_proj", own, width, {})


def _delta_cuts(net: Any, keys: Range) -> NetCuts:
    """The cuts of a gated delta net for a rank with some of its heads of keys."""
    heads = keys.times(net.num_v_heads // net.num_k_heads)
    of_keys, values = keys.times(net.head_k_dim), heads.times(net.head_v_dim)
    channels = Cut(
        0,
        (
            of_keys,
            Range(net.key_dim + of_keys.first, net.key_dim + of_keys.last),
            Range(2 * net.key_dim + values.first, 2 * net.key_dim + values.last),
        ),
    )
    each = Cut(0, (heads,))
    cuts = {
        "conv1d.weight": channels,
        **dict.fromkeys(("dt_bias", "A_log"), each),
        "out_proj.weight": Cut(1, (values,)),
    }
    if is_woven_net(net):  # all rows of a head of keys lie side by side
        for name in ("in_proj_qkvz", "in_proj_ba"):
            rows = getattr(net, name).weight.shape[0] // net.num_k_heads
            cuts[f"{name}.weight"] = Cut(0, (keys.times(rows),))
    else:
        cuts |= {
            "in_proj_qkv.weight": channels,
            "in_proj_z.weight": Cut(0, (values,)),
            **dict.fromkeys(("in_proj_b.weight", "in_proj_a.weight"), each),
        }
    if net.conv1d.bias is not None:
        cuts["conv1d.bias"] = channels
    sizes = {
        "num_k_heads": keys.size,
        "num_v_heads": heads.size,
        "key_dim": of_keys.size,
        "value_dim": values.size,
        "conv_dim": channels.size,
    }
    return NetCuts(cuts, "out_proj", values, net.value_dim, sizes)

"""A rank's part of a recurrent layer: some heads of keys, and the heads of values that they serve.

A gated delta net has one state for each head of values, and its convolution one for each channel of
queries, keys and values; so all of it is cut by heads, and its output is a sum over all ranks.
"""

from typing import Any, NamedTuple

from daemon.engine.quantised.cut import Cut
from daemon.models.rank_shares import Range


class NetCuts(NamedTuple):
    """The cuts of a recurrent layer."""

    cuts: dict[str, Cut]  # by parameter
    summed: str  # the layer whose output is a part of a sum
    sizes: dict[str, int]  # attributes of the module that count what it has


def delta_cuts(net: Any, keys: Range) -> NetCuts:
    """The cuts of a gated delta net of transformers for a rank with some of its heads of keys."""
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
        "in_proj_qkv.weight": channels,
        "conv1d.weight": channels,
        "in_proj_z.weight": Cut(0, (values,)),
        **dict.fromkeys(("in_proj_b.weight", "in_proj_a.weight", "dt_bias", "A_log"), each),
        "out_proj.weight": Cut(1, (values,)),
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
    return NetCuts(cuts, "out_proj", sizes)

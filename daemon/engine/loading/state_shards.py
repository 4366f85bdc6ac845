"""A rank's part of a recurrent layer: some heads or channels, with the states that they keep.

A gated delta net has one state for each head of values, and its convolution one for each channel of
queries, keys and values; so all of it is cut by heads, and its output is a sum over all ranks. So
is Mamba 2, whose groups of heads share directions: where there are fewer of these than ranks,
several have the same one, and a norm over a group adds up what its ranks have. A short convolution
(LFM2) is cut by channels, and so is Mamba 1, where what steps and directions are made of is a sum.
"""

from typing import Any, NamedTuple

from daemon.engine.layers.delta_net import is_delta_net, is_woven_net
from daemon.engine.layers.kimi_delta import is_kimi_delta
from daemon.engine.layers.mamba import is_mamba_2
from daemon.engine.layers.mamba_1 import is_mamba_1
from daemon.engine.layers.short_convolution import is_short_convolution
from daemon.engine.quantised.cut import Cut
from daemon.models.rank_shares import HeadShare, Range, channel_shares, state_shares


class NormShare(NamedTuple):
    """A rank's part of a gated norm, one of whose groups several ranks have."""

    norm: str  # module
    group: int  # which one this rank has a part of
    num_groups: int  # of all ranks
    group_size: int


class NetCuts(NamedTuple):
    """The cuts of a recurrent layer."""

    cuts: dict[str, Cut]  # by parameter
    summed: tuple[str, ...]  # layers that take `inner`, and whose output is a part of a sum
    inner: Range
    inner_size: int  # of all ranks
    sizes: dict[str, int]  # attributes of the module that count what it has
    shared_norm: NormShare | None = None


def is_shared_net(module: Any) -> bool:
    """Whether ranks share a recurrent layer of transformers."""
    return any(
        recognises(module)
        for recognises in (
            is_delta_net,
            is_woven_net,
            is_kimi_delta,
            is_mamba_2,
            is_mamba_1,
            is_short_convolution,
        )
    )


def net_cuts(net: Any, rank: int, world_size: int) -> NetCuts:
    """The cuts of such a layer for a rank. Raises ModelError."""
    if is_short_convolution(net):
        return _convolution_cuts(net, _channels(net.conv.weight.shape[0], rank, world_size))
    if is_mamba_1(net):
        return _mamba_1_cuts(net, _channels(net.intermediate_size, rank, world_size))
    if is_kimi_delta(net):
        return _kimi_cuts(net, state_shares(net.num_heads, world_size)[rank].queries)
    if is_mamba_2(net):
        return _mamba_2_cuts(net, state_shares(net.num_heads, world_size, net.n_groups), rank)
    return _delta_cuts(net, state_shares(net.num_k_heads, world_size)[rank].queries)


def _channels(width: int, rank: int, world_size: int) -> Range:
    """A rank's channels of a layer without heads."""
    count = channel_shares(width)
    return state_shares(count, world_size)[rank].queries.times(width // count)


def _behind(first: int, own: Range) -> Range:
    return Range(first + own.first, first + own.last)


def _with_biases(net: Any, cuts: dict[str, Cut], *layers: str) -> dict[str, Cut]:
    """Cuts, and those of layers' biases, which are as their rows', where they have some."""
    biased = [layer for layer in layers if getattr(net, layer).bias is not None]
    return cuts | {f"{layer}.bias": cuts[f"{layer}.weight"] for layer in biased}


def _convolution_cuts(net: Any, own: Range) -> NetCuts:
    """The cuts of a short convolution: gates of inputs, of outputs, and inputs are its rows."""
    width = net.conv.weight.shape[0]
    rows = tuple(_behind(part * width, own) for part in range(3))
    cuts = {
        "in_proj.weight": Cut(0, rows),
        "conv.weight": Cut(0, (own,)),
    }
    return NetCuts(_with_biases(net, cuts, "in_proj", "conv"), ("out_proj",), own, width, {})


def _mamba_1_cuts(net: Any, own: Range) -> NetCuts:
    """The cuts of Mamba 1: channels and their gates are its first rows."""
    width, channels = net.intermediate_size, Cut(0, (own,))
    cuts = {
        "in_proj.weight": Cut(0, (own, _behind(width, own))),
        **dict.fromkeys(("conv1d.weight", "dt_proj.weight", "A_log", "D"), channels),
    }
    cuts = _with_biases(net, cuts, "in_proj", "conv1d", "dt_proj")
    sizes = {"intermediate_size": own.size}
    return NetCuts(cuts, ("x_proj", "out_proj"), own, width, sizes)


def _mamba_2_cuts(net: Any, shares: tuple[HeadShare, ...], rank: int) -> NetCuts:
    """The cuts of Mamba 2: its first rows are gates, inputs, both directions of each group, and
    steps of heads.
    """
    heads, groups = shares[rank].queries, shares[rank].keys
    width, of_groups = net.intermediate_size, net.n_groups * net.ssm_state_size
    values, directions = heads.times(net.head_dim), groups.times(net.ssm_state_size)
    first = (_behind(width + part * of_groups, directions) for part in range(2))
    channels = Cut(0, (values, *first))
    end = 2 * width + 2 * of_groups
    rows = (values, *(_behind(width, part) for part in channels.ranges), _behind(end, heads))
    cuts = {
        "in_proj.weight": Cut(0, rows),
        "conv1d.weight": channels,
        **dict.fromkeys(("dt_bias", "A_log", "D"), Cut(0, (heads,))),
        "norm.weight": Cut(0, (values,)),
    }
    sizes = {
        "num_heads": heads.size,
        "n_groups": groups.size,
        "intermediate_size": values.size,
        "conv_dim": channels.size,
    }
    shared = None
    if len({share.keys for share in shares}) < len(shares):  # the others hear of this rank's part
        shared = NormShare("norm", groups.first, net.n_groups, width // net.n_groups)
    cuts = _with_biases(net, cuts, "in_proj", "conv1d")
    return NetCuts(cuts, ("out_proj",), values, width, sizes, shared_norm=shared)


def _kimi_cuts(net: Any, heads: Range) -> NetCuts:
    """The cuts of Kimi's delta attention: inner states of decays and gates are on all ranks."""
    width, values = net.num_heads * net.head_dim, heads.times(net.head_dim)
    own, each = Cut(0, (values,)), Cut(0, (heads,))
    first = ("q_proj", "k_proj", "v_proj", "g_b_proj", "forget_gate.f_b_proj")
    cuts = {
        **dict.fromkeys((f"{layer}.weight" for layer in first), own),
        "forget_gate.dt_bias": own,
        "forget_gate.A_log": Cut(2, (heads,)),
        "b_proj.weight": each,
        "conv1d.weight": Cut(0, tuple(_behind(part * width, values) for part in range(3))),
    }
    cuts = _with_biases(net, cuts, "conv1d")
    sizes = {"num_heads": heads.size, "qkv_dim": values.size, "conv_dim": 3 * values.size}
    return NetCuts(cuts, ("o_proj",), values, width, sizes)


def _delta_cuts(net: Any, keys: Range) -> NetCuts:
    """The cuts of a gated delta net for a rank with some of its heads of keys."""
    heads = keys.times(net.num_v_heads // net.num_k_heads)
    of_keys, values = keys.times(net.head_k_dim), heads.times(net.head_v_dim)
    channels = Cut(
        0,
        (
            of_keys,
            _behind(net.key_dim, of_keys),
            _behind(2 * net.key_dim, values),
        ),
    )
    each = Cut(0, (heads,))
    cuts = {
        "conv1d.weight": channels,
        **dict.fromkeys(("dt_bias", "A_log"), each),
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
    cuts = _with_biases(net, cuts, "conv1d")
    sizes = {
        "num_k_heads": keys.size,
        "num_v_heads": heads.size,
        "key_dim": of_keys.size,
        "value_dim": values.size,
        "conv_dim": channels.size,
    }
    return NetCuts(cuts, ("out_proj",), values, net.value_dim, sizes)

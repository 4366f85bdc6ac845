"""Writes the calls of what mixes a fused layer's tokens in place of attention, and of gated heads;
their arrays must outlive the run.
"""

from collections.abc import Callable

import torch

from daemon.engine.cpu import mixer_kernels
from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.recurrent_calls import StateCalls
from daemon.engine.cpu.team import Call
from daemon.engine.layers.delta_net import DeltaNet
from daemon.engine.layers.ops import Heads, Norm
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule

Floats = Callable[[str, int, int], torch.Tensor]
"""A dense float32 buffer by its name [count, width]."""


def of_delta_net(
    calls: StateCalls,
    layer: int,
    net: DeltaNet,
    projected: torch.Tensor,
    constants: Constants,
    floats: Floats,
) -> tuple[torch.Tensor, list[Call]]:
    """The output of `DeltaNet.attend`, dense, and the calls that make it."""
    count = len(projected)
    channels, gates, logits, _ = projected.split(net.sizes, 1)
    convolved = floats("convolved", count, channels.shape[1])
    query, key, value = net.split(convolved)
    decay, beta = (floats(name, count, net.num_heads) for name in ("decay", "beta"))
    read = floats("read", count, net.width)
    output = floats("attended", count, net.width)
    rule = DeltaRule(query, key, value, decay, beta)
    return output, [
        calls.convolve(layer, Convolution(channels, net.taps, net.bias, True), convolved),
        _steps(net, logits, decay, beta),
        calls.delta_rule(layer, rule, read.view(value.shape)),
        norm_gated(read.view(value.shape), gates, net.norm, constants, output),
    ]


def _steps(net: DeltaNet, logits: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor) -> Call:
    places = logits.data_ptr(), logits.stride(0), net.num_heads
    held = net.rates.data_ptr(), net.step_bias.data_ptr()
    address = mixer_kernels.steps().address
    return len(logits), BY_ADDRESS, address, *places, *held, decay.data_ptr(), beta.data_ptr()


def norm_gated(
    values: torch.Tensor,
    gates: torch.Tensor,
    norm: Norm,
    constants: Constants,
    output: torch.Tensor,
) -> Call:
    """See `Ops.norm_gated`; all but `gates` are dense."""
    count, num_heads, size = values.shape
    return (
        count * num_heads,
        BY_ADDRESS,
        mixer_kernels.normed_and_gated().address,
        values.data_ptr(),
        num_heads,
        size,
        norm.weight.data_ptr(),
        constants.address(norm.epsilon),
        gates.data_ptr(),
        gates.stride(0),
        output.data_ptr(),
    )


def part_heads(heads: Heads, projected: torch.Tensor, output: torch.Tensor) -> Call:
    """A merged projection `output` without the gates that follow each query of `projected`."""
    places = projected.data_ptr(), projected.stride(0), heads.num_heads, heads.head_dim
    address, rest = mixer_kernels.parted().address, heads.sizes[1]
    count = len(projected)
    return count, BY_ADDRESS, address, *places, rest, output.data_ptr(), output.stride(0)


def gate_heads(heads: Heads, projected: torch.Tensor, attended: torch.Tensor) -> Call:
    """Multiply what heads give, dense, by the gates of `projected`, in place."""
    address, count = mixer_kernels.gated().address, len(projected) * heads.num_heads
    states = attended.data_ptr(), heads.num_heads, heads.head_dim
    return count, BY_ADDRESS, address, *states, projected.data_ptr(), projected.stride(0)

"""Writes the calls of mixers with states and of gated heads; their arrays must outlive the run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from daemon.engine.cpu import calls, mixer_kernels
from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.rank_calls import ranks_of
from daemon.engine.cpu.recurrent_calls import StateCalls
from daemon.engine.cpu.team import Call
from daemon.engine.layers.delta_net import DeltaNet
from daemon.engine.layers.kimi_delta import KimiDelta
from daemon.engine.layers.mamba import Mamba2
from daemon.engine.layers.mamba_1 import Mamba1
from daemon.engine.layers.mixers import StateMixer
from daemon.engine.layers.mlp import Layer
from daemon.engine.layers.ops import Activation, Heads, Norm
from daemon.engine.layers.ranks import SharedNorm
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan
from daemon.engine.layers.short_convolution import ShortConvolution

Floats = Callable[[str, int, int], torch.Tensor]
"""A dense float32 buffer by its name [count, width]."""

Multiply = Callable[[Layer, torch.Tensor, str], tuple[torch.Tensor, list[Call]]]
"""The product of a layer and dense states, in the buffer of a name, and the calls that make it."""


@dataclass(frozen=True, slots=True)
class MixerCalls:
    """Writes the calls of mixers over the states of some rows of a step."""

    states: StateCalls
    constants: Constants
    floats: Floats
    multiply: Multiply

    def of(
        self, layer: int, mixer: StateMixer, projected: torch.Tensor
    ) -> tuple[torch.Tensor, list[Call]]:
        """The output of a mixer's `attend` from a first projection, dense, and the calls that make
        it.
        """
        output = self.floats("attended", len(projected), mixer.width)
        if isinstance(mixer, DeltaNet):
            return output, self._of_delta_net(layer, mixer, projected, output)
        if isinstance(mixer, KimiDelta):
            return output, self._of_kimi_delta(layer, mixer, projected, output)
        if isinstance(mixer, Mamba2):
            return output, self._of_mamba_2(layer, mixer, projected, output)
        if isinstance(mixer, Mamba1):
            return output, self._of_mamba_1(layer, mixer, projected, output)
        return output, self._of_convolution(layer, mixer, projected, output)

    def _of_delta_net(
        self, layer: int, net: DeltaNet, projected: torch.Tensor, output: torch.Tensor
    ) -> list[Call]:
        count, first = len(projected), list[Call]()
        if net.order is not None:
            ordered = self.floats("ordered", *projected.shape)
            first = [_ordered(projected, net.order, ordered)]
            projected = ordered
        channels, gates, logits, _ = projected.split(net.sizes, 1)
        convolved = self.floats("convolved", *channels.shape)
        query, key, value = net.split(convolved)
        decay, beta = (self.floats(name, count, net.num_heads) for name in ("decay", "beta"))
        read = self.floats("read", count, net.width).view(value.shape)
        convolution = Convolution(channels, net.taps, net.bias, True)
        return [
            *first,
            self.states.convolve(layer, convolution, convolved),
            _decays(net, logits, decay, beta),
            self.states.delta_rule(layer, DeltaRule(query, key, value, decay, beta), read),
            norm_gated(read, gates, net.norm, self.constants, output),
        ]

    def _of_kimi_delta(
        self, layer: int, net: KimiDelta, projected: torch.Tensor, output: torch.Tensor
    ) -> list[Call]:
        count = len(projected)
        channels, *inner, betas = projected.split(net.sizes, 1)
        names = "inner decays", "inner gates"
        dense_ones = [
            self.floats(name, *part.shape) for name, part in zip(names, inner, strict=True)
        ]
        copied = [_copied(part, dense) for part, dense in zip(inner, dense_ones, strict=True)]
        logits, second = self.multiply(net.to_decays, dense_ones[0], "logits of decays")
        gates, third = self.multiply(net.to_gates, dense_ones[1], "gates")
        convolved = self.floats("convolved", *channels.shape)
        query, key, value = net.split(convolved)
        decay = self.floats("decay", count, net.width).view(value.shape)
        beta = self.floats("beta", count, net.num_heads)
        read = self.floats("read", count, net.width).view(value.shape)
        convolution = Convolution(channels, net.taps, net.bias, True)
        return [
            self.states.convolve(layer, convolution, convolved),
            *copied,
            *second,
            *third,
            _channel_decays(net, logits, betas, decay, beta),
            self.states.delta_rule(layer, DeltaRule(query, key, value, decay, beta), read),
            norm_gated(read, gates, net.norm, self.constants, output, sigmoid=True),
        ]

    def _of_mamba_2(
        self, layer: int, mixer: Mamba2, projected: torch.Tensor, output: torch.Tensor
    ) -> list[Call]:
        gates, channels, logits = projected.split(mixer.sizes, 1)
        convolved = self.floats("convolved", *channels.shape)
        steps = self.floats("steps", *logits.shape)
        inputs, write, read = mixer.split(convolved)
        scanned = self.floats("read", *output.shape)
        scan = Scan(
            inputs=inputs,
            steps=steps,
            rates=mixer.rates,
            write=write,
            read=read,
            direct=mixer.direct,
        )
        convolution = Convolution(channels, mixer.taps, mixer.bias, True)
        if mixer.norm is None:
            last = [_opened(scanned, gates, output)]
        elif mixer.shared_norm is not None:
            last = self._normed_by_all(mixer.shared_norm, mixer.norm, scanned, gates, output)
        else:
            grouped = scanned.unflatten(1, (mixer.norm_groups, -1))
            last = [gate_normed(grouped, gates, mixer.norm, self.constants, output)]
        return [
            self.states.convolve(layer, convolution, convolved),
            _time_steps(mixer.step_bias, logits, self.constants.address(*mixer.limits), steps),
            self.states.chunk_scan(layer, scan, scanned.view(inputs.shape)),
            *last,
        ]

    def _normed_by_all(
        self,
        shared: SharedNorm,
        norm: Norm,
        values: torch.Tensor,
        gates: torch.Tensor,
        output: torch.Tensor,
    ) -> list[Call]:
        """See `SharedNorm`."""
        count, width = output.shape
        squares = self.floats("squares", count, shared.num_groups)
        place = squares.data_ptr(), shared.num_groups, shared.group
        squared = mixer_kernels.squared().address, output.data_ptr(), width, *place
        held = norm.weight.data_ptr(), self.constants.address(norm.epsilon)
        normed = mixer_kernels.normed_by_squares().address, output.data_ptr(), width, *place
        return [
            _opened(values, gates, output),
            (count, BY_ADDRESS, *squared),
            ranks_of(shared).sum_call(squares),
            (count, BY_ADDRESS, *normed, shared.group_size, *held),
        ]

    def _of_mamba_1(
        self, layer: int, mixer: Mamba1, projected: torch.Tensor, output: torch.Tensor
    ) -> list[Call]:
        channels, gates = projected.chunk(2, 1)
        convolved, steps, scanned = (
            self.floats(name, *output.shape) for name in ("convolved", "steps", "read")
        )
        convolution = Convolution(channels, mixer.taps, mixer.bias, True)
        together, second = self.multiply(mixer.second, convolved, "second")
        parts, apart = self._apart(mixer, together)
        logits, third = self.multiply(mixer.to_steps, parts[0], "logits of steps")
        scan = Scan(
            inputs=convolved,
            steps=steps,
            rates=mixer.rates,
            write=parts[1],
            read=parts[2],
            direct=mixer.direct,
        )
        unlimited = self.constants.address(0.0, torch.inf)
        return [
            self.states.convolve(layer, convolution, convolved),
            *second,
            *apart,
            *third,
            _time_steps(mixer.step_bias, logits, unlimited, steps),
            self.states.selective_scan(layer, scan, scanned),
            _opened(scanned, gates, output),
        ]

    def _apart(
        self, mixer: Mamba1, together: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[Call]]:
        """The parts of a second projection, the first of them dense; all normed, if they are."""
        parts = list(together.split(mixer.parts, 1))
        names = "ranks", "write", "read by"
        if not mixer.part_norms:
            dense = self.floats(names[0], *parts[0].shape)
            return [dense, *parts[1:]], [_copied(parts[0], dense)]
        dense_ones = [
            self.floats(name, *part.shape) for name, part in zip(names, parts, strict=True)
        ]
        each = zip(parts, mixer.part_norms, dense_ones, strict=True)
        return dense_ones, [
            calls.norm_of(self.constants, part, None, norm, dense) for part, norm, dense in each
        ]

    def _of_convolution(
        self, layer: int, mixer: ShortConvolution, projected: torch.Tensor, output: torch.Tensor
    ) -> list[Call]:
        gates, of_outputs, inputs = projected.chunk(3, 1)
        gated, convolved = (self.floats(name, *output.shape) for name in ("gated", "convolved"))
        convolution = Convolution(gated, mixer.taps, mixer.bias, False)
        return [
            _multiplied(gates, inputs, gated),
            self.states.convolve(layer, convolution, convolved),
            _multiplied(of_outputs, convolved, output),
        ]


def _decays(net: DeltaNet, logits: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor) -> Call:
    places = logits.data_ptr(), logits.stride(0), net.num_heads
    held = net.rates.data_ptr(), net.step_bias.data_ptr()
    address = mixer_kernels.steps().address
    return len(logits), BY_ADDRESS, address, *places, *held, decay.data_ptr(), beta.data_ptr()


def _channel_decays(
    net: KimiDelta,
    logits: torch.Tensor,
    of_betas: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> Call:
    heads, size = net.num_heads, net.head_dim
    held = net.rates.data_ptr(), net.step_bias.data_ptr()
    places = of_betas.data_ptr(), of_betas.stride(0), decay.data_ptr(), beta.data_ptr()
    address = mixer_kernels.channel_decays().address
    return len(logits) * heads, BY_ADDRESS, address, logits.data_ptr(), heads, size, *held, *places


def _ordered(source: torch.Tensor, order: torch.Tensor, output: torch.Tensor) -> Call:
    places = source.data_ptr(), source.stride(0), order.data_ptr(), len(order), output.data_ptr()
    return len(source), BY_ADDRESS, mixer_kernels.ordered().address, *places


def _time_steps(
    bias: torch.Tensor, logits: torch.Tensor, limits: int, output: torch.Tensor
) -> Call:
    count, width = logits.shape
    items = count * -(-width // mixer_kernels.NUMBERS_AT_ONCE)
    places = logits.data_ptr(), logits.stride(0), width
    address = mixer_kernels.time_steps().address
    return items, BY_ADDRESS, address, *places, bias.data_ptr(), limits, output.data_ptr()


def _opened(values: torch.Tensor, gates: torch.Tensor, output: torch.Tensor) -> Call:
    places = values.data_ptr(), values.stride(0), gates.data_ptr(), gates.stride(0)
    address = mixer_kernels.opened().address
    return len(values), BY_ADDRESS, address, *places, output.shape[1], output.data_ptr()


def _copied(source: torch.Tensor, output: torch.Tensor) -> Call:
    places = source.data_ptr(), source.stride(0), output.shape[1], output.data_ptr()
    return len(source), BY_ADDRESS, mixer_kernels.copied().address, *places


def _multiplied(left: torch.Tensor, right: torch.Tensor, output: torch.Tensor) -> Call:
    places = left.data_ptr(), left.stride(0), right.data_ptr(), right.stride(0)
    address = mixer_kernels.multiplied().address
    return len(left), BY_ADDRESS, address, *places, output.shape[1], output.data_ptr()


def weighed(states: torch.Tensor, factors: torch.Tensor) -> Call:
    """Multiply `states` [T, N], dense, by `factors` [N], in place."""
    places = states.data_ptr(), states.stride(0), factors.data_ptr(), len(factors)
    return len(states), BY_ADDRESS, mixer_kernels.weighed().address, *places


def summed(states: torch.Tensor, others: torch.Tensor, scales: int) -> Call:
    """`states` and `others`, both dense, times the two numbers at an address, in `states`."""
    places = states.data_ptr(), others.data_ptr(), states.shape[1], scales
    return len(states), BY_ADDRESS, mixer_kernels.summed().address, *places


def activated(states: torch.Tensor, output: torch.Tensor, activation: Activation) -> Call:
    """`output` of `states`, both dense: see `Ops.activated`."""
    if activation is not Activation.RELU_SQUARED:
        return calls.gated(states, output, activation)
    places = states.data_ptr(), states.shape[1], output.data_ptr()
    return len(states), BY_ADDRESS, mixer_kernels.relu_squared().address, *places


def norm_gated(
    values: torch.Tensor,
    gates: torch.Tensor,
    norm: Norm,
    constants: Constants,
    output: torch.Tensor,
    sigmoid: bool = False,
) -> Call:
    """See `Ops.norm_gated`; all but `gates` are dense."""
    address = mixer_kernels.normed_and_gated(sigmoid).address
    return _with_gates(address, values, gates, norm, constants, output)


def gate_normed(
    values: torch.Tensor,
    gates: torch.Tensor,
    norm: Norm,
    constants: Constants,
    output: torch.Tensor,
) -> Call:
    """See `Ops.gate_normed`; all but `gates` are dense."""
    address = mixer_kernels.gated_and_normed().address
    return _with_gates(address, values, gates, norm, constants, output)


def _with_gates(
    address: int,
    values: torch.Tensor,
    gates: torch.Tensor,
    norm: Norm,
    constants: Constants,
    output: torch.Tensor,
) -> Call:
    count, num_parts, size = values.shape
    return (
        count * num_parts,
        BY_ADDRESS,
        address,
        values.data_ptr(),
        num_parts,
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

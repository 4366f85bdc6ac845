"""The recurrent layers of one step, by what transformers' code asks of them, and in plain torch."""

from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import conv1d, silu

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.states import StatePages
from daemon.engine.layers.recurrent.chunk_scan import chunk_scan
from daemon.engine.layers.recurrent.delta_rule import delta_rule
from daemon.engine.layers.recurrent.rows import TokenRows
from daemon.engine.layers.recurrent.selective_scan import selective_scan
from daemon.memory.state_layout import CONV, SSM


class Convolution(NamedTuple):
    """The arguments of one step's convolution of channels."""

    inputs: torch.Tensor  # [T, C]
    weight: torch.Tensor  # [C, K]
    bias: torch.Tensor | None  # [C]
    activated: bool  # by silu

    @classmethod
    def over(
        cls, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activated: bool
    ) -> "Convolution":
        """Those of inputs that may be wider than the weights, which are widened."""
        own = None if bias is None else bias.to(inputs.dtype)
        return cls(inputs, weight.to(inputs.dtype), own, activated)


class DeltaRule(NamedTuple):
    """The arguments of one step's gated delta rule: those of `delta_rule` but for the states."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


class Scan(NamedTuple):
    """The arguments of one step's scan of heads (Mamba 2) or of channels (Mamba 1): those of
    `chunk_scan` and `selective_scan` but for the states.
    """

    inputs: torch.Tensor
    steps: torch.Tensor
    rates: torch.Tensor
    write: torch.Tensor
    read: torch.Tensor
    direct: torch.Tensor | None


class Recurrence(Protocol):
    """One step's recurrent layers: each reads its sequences' states from the pool and writes them
    back as they are behind the step's tokens.
    """

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """Its inputs convolved, then silu where it is activated: [T, C]."""

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """The values that the rule reads, shaped as those that it writes."""

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """A scan of heads, shaped as its inputs."""

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """A scan of channels, shaped as its inputs."""


def convolve(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    states: torch.Tensor,
    rows: TokenRows,
) -> torch.Tensor:
    """Convolve `inputs` [T, C] by `weight` [C, K], then silu where `activated`; as `inputs`.

    `states` [B, K - 1, C] are each row's inputs before these, and afterwards its last ones.
    """
    width = weight.shape[1] - 1
    earlier, tokens, last = (index.to(inputs.device) for index in rows.behind(width))
    joined = weight.new_empty(len(inputs) + earlier.numel(), inputs.shape[1])
    joined[earlier] = states.to(weight.dtype)
    joined[tokens] = inputs.to(weight.dtype)
    states.copy_(joined[last])
    convolved = conv1d(joined.T, weight.unsqueeze(1), bias, groups=len(weight))
    output = convolved.T[tokens - width]
    return (silu(output) if activated else output).to(inputs.dtype)


class TorchRecurrence:
    """See `Recurrence`: states are copied out of their pages, and back."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        self._pages = StatePages(batch, cache)
        self._rows = TokenRows(batch.row_offsets.astype(int), batch.counts.astype(int))

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """See `Recurrence`."""
        states = self._pages.read(layer, CONV)
        output = convolve(*convolution, states, self._rows)
        self._pages.write(layer, CONV, states)
        return output

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """See `Recurrence`."""
        states = self._pages.read(layer, SSM)
        matrices = states.unflatten(-1, (rule.key.shape[-1], rule.value.shape[-1]))
        output = delta_rule(*rule, matrices, self._rows)
        self._pages.write(layer, SSM, states)
        return output

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        states = self._pages.read(layer, SSM)
        matrices = states.unflatten(-1, (scan.inputs.shape[-1], scan.write.shape[-1]))
        output = chunk_scan(*scan, matrices, self._rows)
        self._pages.write(layer, SSM, states)
        return output

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        states = self._pages.read(layer, SSM)
        output = selective_scan(*scan, states, self._rows)
        self._pages.write(layer, SSM, states)
        return output

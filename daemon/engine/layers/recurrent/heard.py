"""The recurrent layers that a model asks for, noted instead of computed."""

from collections.abc import Sequence

import torch

from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan
from daemon.memory.state_layout import CONV, SSM, StatePart


class HeardRecurrence:
    """See `Recurrence`: answers zeros, and notes the units and numbers of each layer's state."""

    def __init__(self) -> None:
        self._heard: list[tuple[int, str, int, int]] = []  # layer, part, units, numbers of each

    def reasons(self, expected: Sequence[Sequence[StatePart]]) -> list[str]:
        """The first difference from the `expected` states of layers, in words; empty: there is
        none.
        """
        wanted = sorted(
            (layer, part.name, part.num_units, part.unit_numbers)
            for layer, parts in enumerate(expected)
            for part in parts
        )
        heard = sorted(self._heard)
        if heard == wanted:
            return []
        if len(heard) != len(wanted):
            said = f"its recurrent layers ask {len(heard)} times for a state"
            return [f"{said}, and its configuration tells of {len(wanted)}"]
        ours, theirs = next(pair for pair in zip(wanted, heard, strict=True) if len({*pair}) > 1)
        return [f"it keeps {_words(theirs)}, where its configuration says {_words(ours)}"]

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """See `Recurrence`."""
        num_channels, taps = convolution.weight.shape
        self._heard.append((layer, CONV, num_channels, taps - 1))
        return torch.zeros_like(convolution.inputs)

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """See `Recurrence`."""
        num_heads, size = rule.value.shape[1:]
        self._heard.append((layer, SSM, num_heads, rule.key.shape[2] * size))
        return torch.zeros_like(rule.value)

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        num_heads, size = scan.inputs.shape[1:]
        self._heard.append((layer, SSM, num_heads, size * scan.write.shape[2]))
        return torch.zeros_like(scan.inputs, dtype=torch.float32)

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        self._heard.append((layer, SSM, *scan.rates.shape))
        return torch.zeros_like(scan.inputs, dtype=torch.float32)


def _words(state: tuple[int, str, int, int]) -> str:
    layer, part, num_units, numbers = state
    return f"{num_units} times {numbers} numbers of layer {layer} ({part})"

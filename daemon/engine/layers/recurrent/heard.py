"""The recurrent layers that a model asks for, noted instead of computed."""

from collections.abc import Sequence

import torch

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

    def convolve(
        self,
        layer: int,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activated: bool,
    ) -> torch.Tensor:
        """See `Recurrence`."""
        self._heard.append((layer, CONV, len(weight), weight.shape[1] - 1))
        return torch.zeros_like(inputs)

    def delta_rule(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor,
    ) -> torch.Tensor:
        """See `Recurrence`."""
        self._heard.append((layer, SSM, value.shape[1], key.shape[2] * value.shape[2]))
        return torch.zeros_like(value)

    def chunk_scan(
        self,
        layer: int,
        inputs: torch.Tensor,
        steps: torch.Tensor,
        rates: torch.Tensor,
        write: torch.Tensor,
        read: torch.Tensor,
        direct: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `Recurrence`."""
        self._heard.append((layer, SSM, inputs.shape[1], inputs.shape[2] * write.shape[2]))
        return inputs.new_zeros(inputs.shape, dtype=torch.float32)

    def selective_scan(
        self,
        layer: int,
        inputs: torch.Tensor,
        steps: torch.Tensor,
        rates: torch.Tensor,
        write: torch.Tensor,
        read: torch.Tensor,
        direct: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `Recurrence`."""
        self._heard.append((layer, SSM, *rates.shape))
        return inputs.new_zeros(inputs.shape, dtype=torch.float32)


def _words(state: tuple[int, str, int, int]) -> str:
    layer, part, num_units, numbers = state
    return f"{num_units} times {numbers} numbers of layer {layer} ({part})"

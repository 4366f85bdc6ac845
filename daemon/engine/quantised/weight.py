"""A weight as its file holds it: rows of blocks, unpacked when the numbers are needed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from daemon.engine.quantised.unpack import unpack
from daemon.models.formats import WeightFormat

Unpack = Callable[[WeightFormat, torch.Tensor], torch.Tensor]
"""From a format and rows of its blocks to float32 numbers, as `daemon.engine.quantised.unpack`."""


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight [N, K] in one format; `data` uint8 [N, bytes of a row], dense.

    `order` int32 [K], where it is given: column k of the blocks is the weight's column order[k], as
    GPTQ stores weights in the order of their activations. Products take states in this order.
    """

    format: WeightFormat
    data: torch.Tensor
    columns: int
    order: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """N, the numbers that a product gives for a token."""
        return len(self.data)

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K], as that of a plain weight."""
        return self.rows, self.columns

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        return self.data.nbytes + (0 if self.order is None else self.order.nbytes)

    def pick(self, rows: torch.Tensor | slice) -> "QuantisedWeight":
        """Some rows, or all in another order."""
        return replace(self, data=self.data[rows])

    def numbers(self, unpack: Unpack = unpack) -> torch.Tensor:
        """float32 [N, K]: the weight's numbers, exactly as its format defines them.

        `unpack` does what the function of this name does, perhaps faster.
        """
        blocks = unpack(self.format, self.data)
        if self.order is None:
            return blocks
        numbers = torch.empty_like(blocks)
        numbers[:, self.order.long()] = blocks
        return numbers

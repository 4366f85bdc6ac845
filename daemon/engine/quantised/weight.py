"""A weight as its file holds it: rows of blocks, unpacked when somebody needs the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from daemon.engine.quantised.unpack import unpack
from daemon.models.formats import Format


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight [N, K] in one format; `data` uint8 [N, bytes of a row], dense.

    `order` int32 [K], where it is given: column k of the blocks is the weight's column order[k], as
    GPTQ stores weights in the order of their activations. Whoever multiplies takes states so.
    """

    format: Format
    data: torch.Tensor
    columns: int
    order: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """N, what a product gives of a token."""
        return len(self.data)

    @property
    def size_bytes(self) -> int:
        """Bytes that it holds."""
        return self.data.nbytes + (0 if self.order is None else self.order.nbytes)

    def pick(self, rows: torch.Tensor | slice) -> "QuantisedWeight":
        """Some rows, or all in another order."""
        return replace(self, data=self.data[rows])

    def blocks(self) -> torch.Tensor:
        """float32 [N, K]: the numbers in the order of the blocks."""
        return unpack(self.format, self.data)

    def numbers(self) -> torch.Tensor:
        """float32 [N, K]: the weight's numbers, exactly as its format defines them."""
        if self.order is None:
            return self.blocks()
        numbers = torch.empty(self.rows, self.columns, device=self.data.device)
        numbers[:, self.order.long()] = self.blocks()
        return numbers


def joined(parts: Sequence[QuantisedWeight]) -> list[QuantisedWeight]:
    """The parts below each other; neighbours of one format and order become one, copied."""
    runs: list[list[QuantisedWeight]] = []
    for part in parts:
        alike = runs and runs[-1][0].format == part.format and runs[-1][0].order is part.order
        if alike and part.order is None:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [_one(run) for run in runs]


def _one(run: list[QuantisedWeight]) -> QuantisedWeight:
    if len(run) == 1:
        return run[0]
    return replace(run[0], data=torch.cat([part.data for part in run]))

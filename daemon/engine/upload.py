"""Columns from the host to a device without waiting for it.

From pageable memory the host would wait until all earlier work of the device is done. torch keeps
a pinned piece from being used again before its copy has ended.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Columns = Sequence[npt.NDArray[Any]]

_ALIGNED_BYTES = 16


def upload(column: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A column on the device, in its stream's order; on a CPU the column itself."""
    return upload_all([column], device)[0]


def upload_all(columns: Columns, device: torch.device) -> list[torch.Tensor]:
    """Several columns in one copy, each in its own type and shape."""
    if device.type != "cuda":
        return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
    starts = _starts(columns)
    pinned = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    octets = pinned.numpy()
    for column, start in zip(columns, starts, strict=False):
        octets[start : start + column.nbytes] = np.ascontiguousarray(column).view(np.uint8).ravel()
    there = pinned.to(device, non_blocking=True)
    return [_part(there, start, column) for column, start in zip(columns, starts, strict=False)]


def _starts(columns: Columns) -> list[int]:
    """Where each column begins, and where the last one ends; aligned as kernels like it."""
    starts = [0]
    for column in columns:
        starts.append(starts[-1] + -(-column.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES)
    return starts


def _part(there: torch.Tensor, start: int, column: npt.NDArray[Any]) -> torch.Tensor:
    kind = torch.from_numpy(np.empty(0, column.dtype)).dtype
    return there[start : start + column.nbytes].view(kind).view(column.shape)

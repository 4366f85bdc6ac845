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
    packed = torch.empty(_starts(columns)[-1], dtype=torch.uint8, pin_memory=True)
    pack(columns, packed)
    return unpack(columns, packed.to(device, non_blocking=True))


def pack(columns: Columns, packed: torch.Tensor) -> None:
    """Write columns into `packed` uint8 on the host, one behind the other, aligned."""
    octets = packed.numpy()
    for column, start in zip(columns, _starts(columns), strict=False):
        octets[start : start + column.nbytes] = np.ascontiguousarray(column).view(np.uint8).ravel()


def unpack(columns: Columns, packed: torch.Tensor) -> list[torch.Tensor]:
    """Such columns as views of `packed`, wherever that lies."""
    return [
        packed[start : start + column.nbytes].view(_dtype(column)).view(column.shape)
        for column, start in zip(columns, _starts(columns), strict=False)
    ]


def _starts(columns: Columns) -> list[int]:
    """Offsets of the columns, and the end of the last; aligned as kernels like it."""
    starts = [0]
    for column in columns:
        starts.append(starts[-1] + -(-column.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES)
    return starts


def _dtype(column: npt.NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, column.dtype)).dtype

"""Weights of any bytes in any format, but with scales that are numbers."""

import numpy as np
import torch

from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS, PLAIN
from tests.engine.loading.gguf_files import put_scattered

_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("Q4_K", "Q5_K", "Q4_1", "Q5_1"), (0, 2)),
}
"""The places of a block's float16 numbers; in other formats they are at the front."""
_MOST_FLOAT8 = 0x7E


def random_blocks(name: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """uint8 [rows, bytes of so many columns]."""
    form = FORMATS[name]
    rng = np.random.default_rng(seed)
    if name in PLAIN:
        floats = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
        return floats.to(getattr(torch, PLAIN[name])).view(torch.uint8).numpy()
    data = rng.integers(0, 256, (rows, form.row_bytes(columns)), np.uint8)
    blocks = data.reshape(-1, form.block_bytes)
    if "/" in name:
        _put(blocks, 0, rng.normal(0, 0.01, (len(blocks), 1)).astype(np.float32))
        zeros = np.zeros(1) if name.startswith("fp8") else rng.integers(0, 16, (len(blocks), 1))
        if name.startswith("fp4"):
            zeros = rng.uniform(0.5, 2, (len(blocks), 1))
            blocks[:, 8:16] = np.where(blocks[:, 8:16] & 0x7F > _MOST_FLOAT8, 0, blocks[:, 8:16])
        _put(blocks, 4, np.broadcast_to(zeros, (len(blocks), 1)).astype(np.float32))
        if name.startswith("fp8"):
            blocks[:, 8:] = np.where(blocks[:, 8:] & 0x7F > _MOST_FLOAT8, 0, blocks[:, 8:])
        return data
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(110, 125, len(blocks))
        return data
    if name == "IQ1_M":
        put_scattered(blocks, rng.normal(0, 0.01, (len(blocks), 1)))
        return data
    for at in _HALVES.get(name, (0,)):
        _put(blocks, at, rng.normal(0, 0.01, (len(blocks), 1)).astype(np.float16))
    return data


def random_weight(name: str, rows: int, columns: int, seed: int = 0) -> QuantisedWeight:
    """A weight [rows, columns]."""
    data = torch.from_numpy(random_blocks(name, rows, columns, seed))
    return QuantisedWeight(FORMATS[name], data, columns)


def _put(blocks: np.ndarray, at: int, numbers: np.ndarray) -> None:
    numbers = np.ascontiguousarray(numbers).view(np.uint8)
    blocks[:, at : at + numbers.shape[1]] = numbers

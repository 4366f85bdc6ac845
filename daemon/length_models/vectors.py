"""Unit vectors as one byte a component: a quarter of the space, with cosines off by about 0.002."""

import numpy as np
import numpy.typing as npt

from daemon.length_models.prediction import Float32

Int8 = npt.NDArray[np.int8]


def packed(vectors: Float32) -> Int8:
    """[N, D] int8: each vector scaled so that its largest component becomes 127 (or -127)."""
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    whole: Int8 = np.rint(vectors * (127.0 / np.where(largest, largest, 1.0))).astype(np.int8)
    return whole


def unpacked(vectors: Int8) -> Float32:
    """[N, D]: vectors of length 1; one of zeros alone stays so. Packing these gives the same."""
    wide: Float32 = vectors.astype(np.float32)
    wide /= np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1.0)
    return wide

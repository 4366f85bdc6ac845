"""The inputs of learned models, of one request or many stored ones: counts, features, vector."""

import numpy as np

from daemon.length_models.features import NUM_FEATURES
from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.store import Rows

NUM_COLUMNS = 2 + NUM_FEATURES
"""The number of columns without the vector."""

VECTOR_LENGTH = 2.0


def columns_of(asked: Asked) -> Float32:
    """[2 + F]: one request's counts, on a log scale, and its features (zeros where unknown)."""
    columns = np.zeros(NUM_COLUMNS, np.float32)
    columns[0] = asked.num_prompt_tokens
    columns[1] = asked.max_tokens
    columns[:2] = np.log1p(columns[:2]) / 3.0
    if asked.features is not None:
        columns[2:] = asked.features
    return columns


def columns_of_rows(rows: Rows) -> Float32:
    """[N, 2 + F]: the same columns of stored requests."""
    columns = np.empty((rows.size, NUM_COLUMNS), np.float32)
    columns[:, 0] = rows["num_prompt_tokens"]
    columns[:, 1] = rows["max_tokens"]
    columns[:, :2] = np.log1p(columns[:, :2]) / 3.0
    columns[:, 2:] = rows["features"]
    return columns


def with_vectors(columns: Float32, vectors: Float32) -> Float32:
    """[N, 2 + F + D]: vectors beside, stretched so that they weigh as a few features do."""
    return np.hstack([columns, vectors * np.float32(VECTOR_LENGTH)])


def log_lengths(rows: Rows) -> Float32:
    """[N]: natural logarithms of the answers' tokens."""
    lengths: Float32 = np.log(np.maximum(rows["num_tokens"], 1)).astype(np.float32)
    return lengths

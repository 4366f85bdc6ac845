"""A forward pass that finds no memory is tried once more, smaller: caches given back, row by row.

Nothing is lost by trying again: keys and values are written where the first try wrote them, and
nothing is drawn before the logits are there.
"""

import logging

import numpy as np
import torch

from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.model import Model
from daemon.wire.columns import int32

log = logging.getLogger(__name__)


def logits_of(model: Model, flat: FlatBatch, cache: KVCache, backend: Backend) -> torch.Tensor:
    """Logits [R, vocab] of a batch's sampled tokens, whole or, out of memory, row by row.

    Raises torch.OutOfMemoryError where a single row does not fit either.
    """
    try:
        return model.logits(flat, cache, backend)
    except torch.OutOfMemoryError as error:
        log.warning("a step of %d tokens is computed row by row: %s", len(flat.tokens), error)
    # Outside of `except`: the exception's traceback keeps the first try's tensors alive.
    if cache.blocks.device.type == "cuda":
        torch.cuda.empty_cache()
    rows = (_row(flat, row) for row in range(len(flat.counts)))
    return torch.cat([model.logits(row, cache, backend).clone() for row in rows])


def _row(flat: FlatBatch, row: int) -> FlatBatch:
    """One row as a batch of its own."""
    first, count = int(flat.row_offsets[row]), int(flat.counts[row])
    span = slice(first, first + count)
    sampled = (flat.sampled_tokens >= first) & (flat.sampled_tokens < first + count)
    only, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    return FlatBatch(
        tokens=flat.tokens[span],
        positions=flat.positions[span],
        blocks=flat.blocks[span],
        offsets=flat.offsets[span],
        row_offsets=int32([0]),
        starts=flat.starts[row : row + 1],
        counts=flat.counts[row : row + 1],
        block_tables=flat.block_tables[row : row + 1],
        single_rows=only if count == 1 else none,
        chunk_rows=none if count == 1 else only,
        sampled_tokens=flat.sampled_tokens[sampled] - first,
        sampled_slots=flat.sampled_slots[sampled],
        sampled_positions=flat.sampled_positions[sampled],
    )

"""A forward pass that finds no memory is tried once more, smaller: caches given back, row by row.

Nothing is lost by trying again: keys and values are written where the first try wrote them, and
nothing is drawn before the logits are there.
"""

import logging
from collections.abc import Callable

import torch

from daemon.engine.batch.flat_batch import FlatBatch, part

log = logging.getLogger(__name__)


def computed(batch: FlatBatch, compute: Callable[[FlatBatch], torch.Tensor]) -> torch.Tensor:
    """Logits or states [R, ...] of a batch's sampled tokens, whole or, out of memory, row by row.

    Raises torch.OutOfMemoryError where a single row does not fit either.
    """
    try:
        return compute(batch)
    except torch.OutOfMemoryError as error:
        log.warning("a step of %d tokens is computed row by row: %s", len(batch.tokens), error)
    # Outside of `except`: the exception's traceback keeps the first try's tensors alive.
    torch.cuda.empty_cache()
    rows = (part(batch, row, 0, int(count)) for row, count in enumerate(batch.counts))
    return torch.cat([compute(row).clone() for row in rows])

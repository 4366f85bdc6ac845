"""A forward pass that finds no memory is tried once more, smaller: caches given back, row by row.

Nothing is lost by trying again: keys and values are written where the first try wrote them, and
nothing is drawn before the logits are there.
"""

import logging
from collections.abc import Callable

import torch

from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch, part
from daemon.engine.model import Model
from daemon.engine.slots import Slots

log = logging.getLogger(__name__)


def logits_of(
    model: Model, flat: FlatBatch, slots: Slots, cache: KVCache, backend: Backend
) -> torch.Tensor:
    """Logits [R, vocab] of a batch's sampled tokens, whole or, out of memory, row by row.

    Raises torch.OutOfMemoryError where a single row does not fit either.
    """
    return _computed(flat, cache, lambda batch: model.logits(batch, slots, cache, backend))


def states_of(
    model: Model, flat: FlatBatch, slots: Slots, cache: KVCache, backend: Backend
) -> torch.Tensor:
    """The states [R, width] of a batch's sampled tokens, as `Model.head` takes them; likewise."""
    return _computed(flat, cache, lambda batch: model.states(batch, slots, cache, backend))


def _computed(
    flat: FlatBatch, cache: KVCache, compute: Callable[[FlatBatch], torch.Tensor]
) -> torch.Tensor:
    try:
        return compute(flat)
    except torch.OutOfMemoryError as error:
        log.warning("a step of %d tokens is computed row by row: %s", len(flat.tokens), error)
    # Outside of `except`: the exception's traceback keeps the first try's tensors alive.
    if cache.blocks.device.type == "cuda":
        torch.cuda.empty_cache()
    rows = (part(flat, row, 0, int(count)) for row, count in enumerate(flat.counts))
    return torch.cat([compute(row).clone() for row in rows])

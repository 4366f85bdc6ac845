"""One forward pass over a flattened row of tokens."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from daemon.engine.backend import Backend
from daemon.engine.decoder import Decoder
from daemon.engine.forward import Programs
from daemon.engine.fuse import fuse
from daemon.engine.kv_cache import KVCache
from daemon.engine.linear import PackedLinear, linear_bytes, pack_linears
from daemon.engine.metadata import FlatBatch
from daemon.engine.modules import Modules
from daemon.engine.slots import Slots
from daemon.engine.upload import upload_all
from daemon.engine.witness import Witness
from daemon.memory.sizing import KEEP_BOTH_BYTES
from daemon.models.shape import ModelError
from daemon.wire.columns import int32

log = logging.getLogger(__name__)

_PROBED_TOKENS = 5
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference of fused logits from transformers', relative to the largest logit."""
_QUANTISED_TOLERANCE = 0.1


class Model:
    """A loaded causal language model; logits are computed for sampled tokens only."""

    def __init__(self, forward: Decoder | Modules) -> None:
        self._forward = forward
        self._programs: Programs | None = None

    @property
    def fused(self) -> bool:
        """Whether the straight decoder computes, not transformers' modules."""
        return isinstance(self._forward, Decoder)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, packed copies included, shared ones counted once."""
        held = [one for one in self._forward.products() if isinstance(one, nn.Module)]
        tensors = [p for module in held for p in module.parameters(recurse=False)]
        if isinstance(self._forward, Decoder):
            tensors += self._forward.small_weights()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        packed = (layer.packed_bytes for layer in held if isinstance(layer, PackedLinear))
        return sum(storages.values()) + sum(packed)

    def compile_steps(self, backend: Backend, cache: KVCache, slots: Slots) -> None:
        """From now on compute decode steps as compiled programs, where there are any."""
        self._programs = backend.compile(self._forward, cache, slots)

    def prepare(self) -> bool:
        """Compile one more program while nobody waits; False where there is none left."""
        return self._programs is not None and self._programs.prepare()

    def logits(
        self, batch: FlatBatch, slots: Slots, cache: KVCache, backend: Backend
    ) -> torch.Tensor:
        """Logits [R, vocab] of a batch's sampled tokens; overwritten by the next step."""
        if self._programs is not None and self._programs.takes(batch):
            return self._programs.logits(batch)
        columns = batch.positions, batch.sampled_tokens
        positions, sampled = upload_all(columns, cache.blocks.device)
        paged = backend.attend(batch, cache)
        return self._forward.logits(slots.inputs(batch), positions, sampled, paged)


def optimise(model: Any, cache: KVCache, slots: Slots, backend: Backend) -> Model:
    """The fastest way to compute a loaded model that gives its own logits.

    Scribbles on the pool's first block. The model may not be used afterwards. Raises ModelError
    where its attention is not what the pool holds.
    """
    best = Model(Modules(model))
    expected = _watched_probe(best, cache, slots, backend)
    keep_plain = linear_bytes(model) <= KEEP_BOTH_BYTES
    num_positions = slots.block_table.shape[1] * cache.block_size
    decoder = fuse(model, backend.ops, keep_plain, num_positions)
    if decoder is not None:
        fused = Model(decoder)
        difference = _difference(_probe(fused, cache, slots, backend), expected)
        if difference <= _tolerance(cache):
            best = fused
        else:
            log.warning("not fused: logits would differ by %.1e", difference)
    if not best.fused:
        pack_linears(model, keep_plain)
    return best


def _watched_probe(model: Model, cache: KVCache, slots: Slots, backend: Backend) -> torch.Tensor:
    """A probe of transformers' own modules, which first show that the cache suits them."""
    witness = Witness(backend.attend)
    try:
        logits = _probe(model, cache, slots, replace(backend, attend=witness.attend))
    except (ModelError, torch.OutOfMemoryError):
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise ModelError(f"its modules do not compute a flat row of tokens: {error}") from error
    witness.require_each_layer_once(cache.num_layers)
    return logits


def _tolerance(cache: KVCache) -> float:
    """A quantised cache may round what differs by little to neighbouring steps."""
    return _QUANTISED_TOLERANCE if cache.scales is not None else _PROBE_TOLERANCE[cache.dtype]


def _difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest one, relative to the largest logit."""
    return float((logits - expected).abs().max() / expected.abs().max())


def _probe(model: Model, cache: KVCache, slots: Slots, backend: Backend) -> torch.Tensor:
    """Logits of a few tokens, all in the pool's first block.

    They attend to each other as neighbours do, but half of them say that they stand at the end of
    the longest sequence: what grows with positions shows there.
    """
    count = min(_PROBED_TOKENS, cache.block_size)
    offsets = np.arange(count, dtype=np.int64)
    last = (slots.block_table.shape[1] - 2) * cache.block_size
    far = np.arange(count) > count // 2
    positions = np.where(far & (last > count), last - count + offsets, offsets)
    batch = FlatBatch(
        tokens=offsets + 1,
        own_tokens=np.zeros(0, np.int64),
        own_slots=np.zeros(0, np.int64),
        slots=int32([0]),
        positions=positions,
        blocks=np.zeros(count, np.int64),
        offsets=offsets,
        row_offsets=int32([0]),
        starts=int32([0]),
        counts=int32([count]),
        block_tables=np.zeros((1, 1), np.int32),
        single_rows=np.zeros(0, np.int64),
        chunk_rows=np.zeros(1, np.int64),
        sampled_tokens=offsets,
        sampled_slots=int32(),
        sampled_positions=positions,
    )
    return model.logits(batch, slots, cache, backend).float()

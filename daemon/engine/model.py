"""One forward pass over a flattened row of tokens."""

import logging
from typing import Any

import numpy as np
import torch
from torch import nn

from daemon.engine.backend import Backend, Programs
from daemon.engine.decoder import Decoder
from daemon.engine.fuse import fuse
from daemon.engine.kv_cache import KVCache
from daemon.engine.linear import PackedLinear, linear_bytes, pack_linears
from daemon.engine.metadata import FlatBatch
from daemon.memory.sizing import KEEP_BOTH_BYTES
from daemon.wire.columns import int32

log = logging.getLogger(__name__)

_PROBED_TOKENS = 5
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference of fused logits from transformers', relative to the largest logit."""


class Model:
    """A loaded causal language model; logits are computed for sampled tokens only."""

    def __init__(self, model: Any, decoder: Decoder | None = None) -> None:
        self._model = model
        self._decoder = decoder
        self._programs: Programs | None = None

    @property
    def fused(self) -> bool:
        """Whether the straight decoder computes, not transformers' modules."""
        return self._decoder is not None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, packed copies included, shared ones counted once."""
        modules = self._model.modules() if self._decoder is None else self._decoder.products()
        held = [module for module in modules if isinstance(module, nn.Module)]
        tensors = [p for module in held for p in module.parameters(recurse=False)]
        if self._decoder is not None:
            tensors += self._decoder.small_weights()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        packed = (layer.packed_bytes for layer in held if isinstance(layer, PackedLinear))
        return sum(storages.values()) + sum(packed)

    def forget_modules(self) -> None:
        """Let go of transformers' modules, and of all weights that only they use."""
        if self._decoder is not None:
            self._model = None

    def compile_steps(self, backend: Backend, cache: KVCache) -> None:
        """From now on compute small decode steps as compiled programs, where there are any."""
        if self._decoder is not None:
            self._programs = backend.compile(self._decoder, cache)

    def logits(self, batch: FlatBatch, cache: KVCache, backend: Backend) -> torch.Tensor:
        """Logits [R, vocab] of a batch's sampled tokens; overwritten by the next step."""
        device = cache.blocks.device
        columns = (batch.tokens, batch.positions, batch.sampled_tokens)
        tokens, positions, sampled = (torch.from_numpy(c).to(device) for c in columns)
        if self._programs is not None and backend.takes(batch):
            return self._programs.logits(tokens, positions, batch)
        paged = backend.attend(batch, cache)
        if self._decoder is not None:
            return self._decoder.logits(tokens, positions, sampled, paged)
        output = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=sampled,
            paged=paged,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def optimise(model: Any, cache: KVCache, backend: Backend) -> Model:
    """The fastest way to compute a loaded model that gives its own logits.

    Scribbles on the pool's first block. The model may not be used afterwards.
    """
    plain = Model(model)
    expected = _probe(plain, cache, backend)
    keep_plain = linear_bytes(model) <= KEEP_BOTH_BYTES
    fused = Model(model, fuse(model, backend.ops, keep_plain))
    if fused.fused:
        difference = (_probe(fused, cache, backend) - expected).abs().max() / expected.abs().max()
        if difference <= _PROBE_TOLERANCE[cache.blocks.dtype]:
            fused.forget_modules()
            fused.compile_steps(backend, cache)
            return fused
        log.warning("not fused: logits would differ by %.1e", difference)
    pack_linears(model, keep_plain)
    return plain


def _probe(model: Model, cache: KVCache, backend: Backend) -> torch.Tensor:
    """Logits of a few tokens, all in the pool's first block."""
    count = min(_PROBED_TOKENS, cache.block_size)
    positions = np.arange(count, dtype=np.int64)
    batch = FlatBatch(
        tokens=positions + 1,
        positions=positions,
        blocks=np.zeros(count, np.int64),
        offsets=positions,
        row_offsets=int32([0]),
        starts=int32([0]),
        counts=int32([count]),
        block_tables=np.zeros((1, 1), np.int32),
        single_rows=np.zeros(0, np.int64),
        chunk_rows=np.zeros(1, np.int64),
        sampled_tokens=positions,
        sampled_slots=int32(),
        sampled_positions=positions,
    )
    return model.logits(batch, cache, backend).float()

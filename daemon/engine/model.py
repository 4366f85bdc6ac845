"""One forward pass over a flattened row of tokens."""

import sys
from typing import Any

import numpy as np
import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.backend import Backend
from daemon.engine.decoder import Decoder
from daemon.engine.fuse import fuse
from daemon.engine.kv_cache import KVCache
from daemon.engine.linear import KEEP_BOTH_BYTES, PackedLinear, linear_bytes, pack_linears
from daemon.engine.metadata import FlatBatch
from daemon.wire.columns import int32

_PROBED_TOKENS = 5
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference of fused logits from transformers', relative to the largest logit."""


class Model:
    """A loaded causal language model; logits are computed for sampled tokens only."""

    def __init__(self, model: Any, decoder: Decoder | None = None) -> None:
        self._model = model
        self._decoder = decoder

    @property
    def fused(self) -> bool:
        """Whether the straight decoder computes, not transformers' modules."""
        return self._decoder is not None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, packed copies included."""
        storages = {p.untyped_storage().data_ptr(): p for p in self._model.parameters()}
        held = sum(p.untyped_storage().nbytes() for p in storages.values())
        return held + sum(layer.packed_bytes for layer in self._packed())

    def _packed(self) -> list[PackedLinear]:
        layers = list(self._model.modules())
        if self._decoder is not None:
            layers += self._decoder.products()
        return [layer for layer in layers if isinstance(layer, PackedLinear)]

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """`tokens`, `positions` int64 [T]; `sampled` int64 [R] indexes them. Returns [R, vocab]."""
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

    Scribbles on the pool's first block.
    """
    plain = Model(model)
    expected = _probe(plain, cache, backend)
    keep_plain = linear_bytes(model) <= KEEP_BOTH_BYTES
    fused = Model(model, fuse(model, backend.ops, keep_plain))
    if fused.fused:
        difference = (_probe(fused, cache, backend) - expected).abs().max() / expected.abs().max()
        if difference <= _PROBE_TOLERANCE[cache.blocks.dtype]:
            return fused
        print(f"not fused: logits would differ by {difference:.1e}", file=sys.stderr)
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
    inputs = (batch.tokens, batch.positions, batch.sampled_tokens)
    tokens, positions_, sampled = (torch.from_numpy(i).to(cache.blocks.device) for i in inputs)
    return model.logits(tokens, positions_, sampled, backend.attend(batch, cache)).float()

"""A captured decode step of a small decoder against the same step launched kernel by kernel."""

from functools import partial

import numpy as np
import torch
from torch.nn.functional import linear

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.cuda.attention import CudaAttention
from daemon.engine.cuda.graphs import Capture, DecodeGraphs, Work, cuda_capture
from daemon.engine.cuda.ops import TritonOps
from daemon.engine.families import ByTorch
from daemon.engine.layers.decoder import Decoder, DecoderLayer
from daemon.engine.layers.embeddings import PlainEmbeddings
from daemon.engine.layers.mlp import DenseMlp, Layer
from daemon.engine.layers.ops import Angles, Heads, Norm
from daemon.engine.layers.rotary import RotaryTable
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError, alike
from daemon.wire.columns import int32

_VOCAB = 64
_WIDEST = 1024
"""Most width of states and MLPs: capturing is tried here, and widths have their own families."""
_STEPS = ((9, 3), (1, 17))
"""Tokens in the cache before each step: those of its two sequences, which never are the same."""


def try_graphs(bench: Bench, by_torch: ByTorch) -> None:
    """Capture and replay steps; the first replay compares itself, later ones are compared here.
    No step of a model with latent rows is captured.
    """
    if bench.subject.latent:
        return
    faults: list[str] = []
    decoder = _decoder(bench, by_torch)
    used = 1 + max(max(step) for step in _STEPS) // bench.subject.block_size
    slots = Slots(2, used, (), bench.device)
    slots.block_table[:] = np.arange(2 * used).reshape(2, used)
    slots.device_table.copy_(torch.from_numpy(slots.block_table))
    cache = bench.pool(2 * used)
    graphs = DecodeGraphs(
        decoder, cache, slots, capturing(bench.device), lambda _family, why: faults.append(why)
    )
    for number, starts in enumerate(_STEPS):
        batch = _batch(bench, slots, list(starts), number)
        taken = graphs.takes(batch)
        found = graphs.logits(batch).clone() if taken else None
        if faults:
            raise WrongError(faults[0])
        if found is None:
            raise WrongError("a step was not captured")
        positions = torch.from_numpy(batch.positions).to(bench.device)
        wanted = torch.arange(2, device=bench.device)
        paged = CudaAttention.of(batch, cache)
        states = decoder.rows(slots.inputs(batch), positions, wanted, paged)
        alike(f"replay {number + 1}", found, decoder.head(states), bench.limit)


def capturing(device: torch.device) -> Capture:
    """How steps are captured; where there are no graphs, their work is done anew."""
    return cuda_capture() if device.type == "cuda" else _anew


def _anew(work: Work) -> Work:
    work()
    return work


def _decoder(bench: Bench, by_torch: ByTorch) -> Decoder:
    """One layer of random weights, of the subject's heads."""
    subject = bench.subject
    width, gated = min(subject.hidden, _WIDEST), min(subject.gated, _WIDEST)
    dim, query = subject.head_dim, subject.num_heads * subject.head_dim
    norms = [Norm(bench.normal(dim), 1e-6) for _ in range(2 * subject.head_norms)]
    heads = Heads(subject.num_heads, subject.num_kv_heads, dim, float(dim**-0.5), *norms)
    layer = DecoderLayer(
        input_norm=Norm(bench.normal(width), 1e-5),
        query_key_value=_layer(bench, query + 2 * subject.num_kv_heads * dim, width),
        heads=heads,
        output=_layer(bench, width, query),
        mlp_norm=Norm(bench.normal(width), 1e-5),
        mlp=DenseMlp(_layer(bench, 2 * gated, width), _layer(bench, width, gated)),
    )
    longest = 2 + max(max(step) for step in _STEPS)
    rotary = RotaryTable(partial(_angles, subject.rotary_dim), longest, bench.device)
    return Decoder(
        embeddings=PlainEmbeddings(bench.normal(_VOCAB, width)),
        rotary=(rotary,),
        layers=(layer,),
        norm=Norm(bench.normal(width), 1e-5),
        vocabulary=_layer(bench, _VOCAB, width),
        ops=TritonOps(by_torch),
    )


def _layer(bench: Bench, out_features: int, in_features: int) -> Layer:
    return partial(linear, weight=bench.normal(out_features, in_features) * in_features**-0.5)


def _angles(rotary_dim: int, _like: torch.Tensor, positions: torch.Tensor) -> Angles:
    """As a model's own module makes them: [1, T, rotary_dim]."""
    half = rotary_dim // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=positions.device) / half)
    angles = (positions.unsqueeze(-1) * speeds).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def _batch(bench: Bench, slots: Slots, starts: list[int], number: int) -> FlatBatch:
    """Both slots' next tokens, which a GPU has sampled itself."""
    rows, positions = np.arange(2), np.array(starts)
    slots.take(rows, bench.column([number + 1, number + 20], torch.int64))
    size = bench.subject.block_size
    return FlatBatch(
        tokens=np.zeros(2, np.int64),
        own_tokens=rows,
        own_slots=rows,
        slots=int32([0, 1]),
        positions=positions,
        blocks=slots.block_table[rows, positions // size].astype(np.int64),
        offsets=positions % size,
        row_offsets=int32([0, 1]),
        starts=int32(starts),
        counts=int32([1, 1]),
        block_tables=slots.block_table,
        single_rows=rows,
        chunk_rows=np.zeros(0, np.int64),
        sampled_tokens=rows,
        sampled_slots=int32([0, 1]),
        sampled_positions=positions + 1,
    )

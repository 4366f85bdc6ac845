"""Vidur's tables: measured times of single operators, added up as Vidur's section 4.3 does.

Medians, milliseconds. `tokens_s` is num_layers times the sum of both norms, the projections before
and after attention, rotation, the MLP's three and one residual addition, and the embedding once.
Attention is `prefill_s` by (chunk, tokens before it) and `decode_s` by (decodes, mean context),
times num_layers. `communication_s` is two all-reduces a layer of hidden_size 2-byte values a token,
on a DGX whose ranks fill one node; messages under a megabyte scatter, hence a running median.

Assumed. Attention is measured at one tensor parallel degree, D; at another, t, a rank has D/t of
its heads: decode attention is looked up at D/t of the decodes, since one kernel's work is a pair of
sequence and head; prefill attention takes D/t of the time. Past the table (chunk + before above
4,096) prefill attention grows with chunk * before. Left out: the output head (not in the tables),
and the processor's overheads (a100_cpu_overheads: schedule, sampler, prepare_inputs,
process_model_outputs, ray_comm; some 8 ms a step at batch 8), which belong to a Python engine on
Ray that llmd is not, and which the published predictions leave out too. Vidur rounds tokens up to
8, adds 20 us a message for its launch and 10 % to attention over several sequences with grouped
heads: constants of its code, not measurements, and not taken over.

`fit` is measured on steps of token counts left out of the fit (every fifth), communication left
aside; `noise_sigma` is the tables' standard deviation over the mean of a whole layer.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from daemon.cost.curve import Curve
from daemon.cost.profile import Profile
from daemon.lab.profiles.composed import OperatorTables, fit_operators, held_out_fit
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import fit_curve, medians, smoothed
from daemon.lab.profiles.grids import Cells
from daemon.lab.profiles.importers.naming import profile_name
from daemon.lab.profiles.importers.tables import TableRow, one_of, rows_of
from daemon.lab.profiles.models import Architecture, find_model

LAYER_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
_HOLD_OUT = 5  # every fifth token count
_NEIGHBOURS = 15  # of the running median over message sizes
_NETWORK = "network/a100_dgx/all_reduce.csv"


def convert(source: Path, model: str, device: str, tp: int) -> Profile:
    """The profile from `source`, the folder with compute/ and network/. Raises ProfileError."""
    architecture = find_model(model)
    tables, noise_sigma = _read(source, architecture, device, tp)
    return Profile(
        name=profile_name(model, device, tp),
        model=architecture.spec,
        device=find_device(device),
        tp=tp,
        step=fit_operators(tables),
        fit=held_out_fit(tables, _HOLD_OUT, noise_sigma),
        source=(
            f"Vidur (MLSys 2024), compute and network tables of {architecture.published} on A100, "
            f"tensor parallel {tp}; MIT",
            "fit: steps of one chunk or of decodes alone at token counts left out of the fit; "
            "noise: the tables' standard deviation",
            "assumed: attention at other degrees than measured by its share of heads; beyond 4,096 "
            "tokens by chunk * before; output head and processor overheads left out",
        ),
    )


def _read(
    source: Path, architecture: Architecture, device: str, tp: int
) -> tuple[OperatorTables, float]:
    hardware = device.partition("-")[0]
    _, _, short = architecture.published.partition("/")
    folder = source / "compute" / hardware
    layers = architecture.spec.num_layers
    by_tokens, noise_sigma = _linear(one_of(folder, f"**/{short}/mlp.csv"), layers, tp)
    prefill, decode = _attention(one_of(folder, f"**/{short}/attention.csv"), layers, tp)
    communication_s = _communication(source / _NETWORK, architecture, tp)
    tables = OperatorTables(by_tokens, prefill, decode, communication_s=communication_s)
    return tables, noise_sigma


def _linear(path: Path, layers: int, tp: int) -> tuple[dict[int, float], float]:
    """Seconds of a step by its tokens, attention aside; and the spread of a layer over its mean."""
    columns = [f"time_stats.{name}.median" for name in (*LAYER_OPERATORS, "emb")]
    found: dict[int, list[float]] = defaultdict(list)
    spread = []
    for row in rows_of(path, [*columns, "num_tokens", "num_tensor_parallel_workers"]):
        if row.count("num_tensor_parallel_workers") != tp:
            continue
        layer_ms = sum(row.number(f"time_stats.{name}.median") for name in LAYER_OPERATORS)
        step_ms = layers * layer_ms + row.number("time_stats.emb.median")
        found[row.count("num_tokens")].append(step_ms / 1e3)
        spread.append(_deviation_ms(row) / layer_ms)
    if len(found) < 2 * _HOLD_OUT:
        raise ProfileError(f"{path}: too few rows of tensor parallel {tp}: {len(found)}")
    by_tokens = {tokens: float(np.median(times)) for tokens, times in found.items()}
    return by_tokens, round(float(np.median(spread)), 4)


def _deviation_ms(row: TableRow) -> float:
    """Standard deviation of a layer, all operators slow or fast together."""
    return sum(row.number(f"time_stats.{name}.std") for name in LAYER_OPERATORS)


def _attention(path: Path, layers: int, tp: int) -> tuple[Cells, Cells]:
    """Seconds of attention in all layers, for `tp` ranks, by (chunk, before) and (decodes, ctx)."""
    prefill: dict[tuple[int, int], list[float]] = defaultdict(list)
    decode: dict[tuple[int, int], list[float]] = defaultdict(list)
    degrees = set()
    keys = ("num_tensor_parallel_workers", "batch_size", "prefill_chunk_size", "kv_cache_size")
    for row in rows_of(path, [*keys, "is_prefill"]):
        degree, batch, chunk, before = (row.count(key) for key in keys)
        degrees.add(degree)
        heads = degree / tp
        if row.text("is_prefill") == "True":
            time_s = layers * row.number("time_stats.attn_prefill.median") / 1e3 * heads
            prefill[chunk, before].append(time_s)
        else:
            time_s = layers * row.number("time_stats.attn_decode.median") / 1e3
            if batch * tp % degree == 0:
                decode[batch * tp // degree, before].append(time_s)
    if len(degrees) != 1 or not prefill or not decode:
        raise ProfileError(
            f"{path}: expected prefill and decode rows of one tensor parallel degree, found "
            f"{sorted(degrees)}"
        )
    return _medians_of(prefill), _medians_of(decode)


def _medians_of(cells: dict[tuple[int, int], list[float]]) -> Cells:
    return {place: float(np.median(times)) for place, times in cells.items()}


def _communication(path: Path, architecture: Architecture, tp: int) -> Curve:
    """Seconds of a step's all-reduces by its tokens, small messages smoothed."""
    if tp == 1:
        return Curve((0.0,), (0.0,))
    tokens, times = [], []
    spec = architecture.spec
    column = "time_stats.all_reduce.median"
    for row in rows_of(path, ("num_workers", "devices_per_node", "size", column)):
        if row.count("num_workers") == row.count("devices_per_node") == tp:
            tokens.append(row.number("size") / (2 * spec.hidden_size))
            times.append(2 * spec.num_layers * row.number(column) / 1e3)
    if len(tokens) < _NEIGHBOURS:
        raise ProfileError(f"{path}: too few rows of {tp} workers on one node: {len(tokens)}")
    places, values = medians(tokens, times)
    return fit_curve(places.tolist(), smoothed(values, _NEIGHBOURS).tolist(), tolerance=0.04)

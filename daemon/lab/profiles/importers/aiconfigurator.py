"""AIConfigurator's tables: kernels of vLLM by size, from which any model's layers are composed.

Rows in float16, milliseconds. `tokens_s` at each tabulated number of rows m is num_layers times
the matrix products of a rank (qkv, output, gate and up or fc1, down), interpolated in n and k
between tabulated widths, and what is bound by memory: norms, rotation, activation, the residual
additions where they are not fused (OPT) and the write of keys and values. Those are not in the
tables: bytes moved at 80 % of the bandwidth and 3 us a kernel, the constants that AIConfigurator
gives with its devices. `sampled_s` is the head's product once, vocab_size / tp wide.

`decode_s` is the generation table (context = step + 1), `prefill_s` the context table for a prompt
without tokens before it; a chunk after others adds chunk * before pairs at the pace of the longest
prompt, two pairs of which cost one square. Where a pair of head counts is not tabulated, fewer
heads of the same grouping at a larger batch stand in: a kernel's work is a pair of sequence and
head. Cells that the table lacks grow with decodes * context. `communication_s` is two all-reduces a
layer of vLLM's own kernel, captured in a graph.

`fit` is measured on token counts left out (every third): interpolation between powers of two.
The tables have no repeats: noise of 2 % is assumed. Overheads of the host are left out.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import DeviceSpec, Profile
from daemon.lab.profiles.composed import OperatorTables, fit_operators, held_out_fit
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import fit_curve
from daemon.lab.profiles.grids import Cells, complete
from daemon.lab.profiles.importers.naming import profile_name
from daemon.lab.profiles.importers.tables import one_of, rows_of
from daemon.lab.profiles.models import Architecture, find_model

NOISE_SIGMA = 0.02
_HOLD_OUT = 3
_FOLDERS = {"a100-80g": "a100_sxm", "h200": "h200_sxm"}
_BANDWIDTH_SHARE = 0.8
_KERNEL_S = 3e-6
_BYTES = 2  # of a float16
_BATCHES = tuple(2**power for power in range(10))
_BEFORE = (0, 1024, 4096, 16384)
_DTYPES = {"attn_dtype": "float16", "kv_cache_dtype": "float16"}
Gemms = dict[int, Surface]  # rows m -> seconds by (n, k)


def convert(source: Path, model: str, device: str, tp: int) -> Profile:
    """The profile from `source`, the folder of devices. Raises ProfileError."""
    architecture = find_model(model)
    if device not in _FOLDERS:
        raise ProfileError(f"{source}: has tables of {', '.join(_FOLDERS)}, not of {device}")
    spec, folder = architecture.spec, source / _FOLDERS[device]
    if spec.num_kv_heads % tp:
        raise ProfileError(f"{model}: {spec.num_kv_heads} key heads do not split in {tp}")
    tables = _tables(folder, architecture, find_device(device), tp)
    return Profile(
        name=profile_name(model, device, tp),
        model=spec,
        device=find_device(device),
        tp=tp,
        step=fit_operators(tables),
        fit=held_out_fit(tables, _HOLD_OUT, NOISE_SIGMA),
        source=(
            f"AIConfigurator (NVIDIA), {_FOLDERS[device]}, vLLM's kernels in float16, composed "
            f"for {architecture.published}, tensor parallel {tp}; Apache-2.0",
            "fit: steps of one chunk or of decodes alone at token counts left out of the fit",
            "assumed: operators bound by memory at 80 % of the bandwidth and 3 us each; tokens "
            "before a chunk at the pace of a long prompt; 2 % of noise; no overhead of the host",
        ),
    )


def _tables(
    folder: Path, architecture: Architecture, device: DeviceSpec, tp: int
) -> OperatorTables:
    spec = architecture.spec
    gemms = _gemms(one_of(folder, "**/gemm_perf.txt"))
    head = {m: gemm(spec.vocab_size / tp, spec.hidden_size) for m, gemm in gemms.items()}
    by_tokens = {
        m: spec.num_layers * (_products_s(gemm, architecture, tp) + memory_s)
        for m, gemm in gemms.items()
        for memory_s in [_memory_bound_s(architecture, device, tp, m)]
    }
    heads, kv_heads = spec.num_heads // tp, spec.num_kv_heads // tp
    limit = 2 * spec.context_len
    return OperatorTables(
        by_tokens=by_tokens,
        prefill=_prefill(folder, heads, kv_heads, spec.num_layers, limit),
        decode=_decode(folder, heads, kv_heads, spec.num_layers, limit),
        sampled_s=_from_none(fit_curve(sorted(head), [head[m] for m in sorted(head)])),
        communication_s=_communication(folder, architecture, tp),
    )


def _from_none(curve: Curve) -> Curve:
    """The curve with no time at no rows: a chunk in the middle of a prompt samples nothing."""
    return Curve((0.0, *curve.at), (0.0, *curve.value))


def _gemms(path: Path) -> Gemms:
    cells: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for row in rows_of(path, ("gemm_dtype", "m", "n", "k", "latency")):
        if row.text("gemm_dtype") == "float16":
            place = row.count("n"), row.count("k")
            cells[row.count("m")][place] = row.number("latency") / 1e3
    if len(cells) < 2 * _HOLD_OUT:
        raise ProfileError(f"{path}: too few numbers of rows in float16: {len(cells)}")
    return {m: _surface(cells[m]) for m in sorted(cells)}


def _surface(cells: Cells) -> Surface:
    """A surface of all cells, the missing ones filled in."""
    rows, columns, values = complete(cells)
    return Surface(
        tuple(map(float, rows)), tuple(map(float, columns)), tuple(map(tuple, values.tolist()))
    )


def _products_s(gemm: Surface, architecture: Architecture, tp: int) -> float:
    """Seconds of one layer's matrix products on one rank; `gemm` is by (n, k) at some m."""
    spec, ffn = architecture.spec, architecture.ffn_size
    wide = 2 * ffn if architecture.is_gated else ffn
    query = spec.num_heads * spec.head_dim
    key_value = 2 * spec.num_kv_heads * spec.head_dim
    return (
        gemm((query + key_value) / tp, spec.hidden_size)
        + gemm(spec.hidden_size, query / tp)
        + gemm(wide / tp, spec.hidden_size)
        + gemm(spec.hidden_size, ffn / tp)
    )


def _memory_bound_s(architecture: Architecture, device: DeviceSpec, tp: int, tokens: int) -> float:
    """Seconds of one layer's operators that only move bytes."""
    spec, ffn = architecture.spec, architecture.ffn_size / tp
    keys = spec.num_kv_heads * spec.head_dim / tp
    if architecture.is_gated:
        kernels = 5  # two norms with the addition fused, rotation, write of keys, activation
        query = spec.num_heads * spec.head_dim / tp
        widths = 2 * 4 * spec.hidden_size + 2 * (query + keys) + 4 * keys + 3 * ffn
    else:
        kernels = 6  # two norms, two additions, write of keys, activation
        widths = 2 * 2 * spec.hidden_size + 2 * 3 * spec.hidden_size + 4 * keys + 2 * ffn
    moved_bytes = tokens * widths * _BYTES
    return kernels * _KERNEL_S + moved_bytes / (_BANDWIDTH_SHARE * device.bandwidth_bytes_per_s)


def _attention(path: Path, heads: int, kv_heads: int, column: str) -> tuple[Surface, int]:
    """Seconds of one layer by (batch, length), and the factor on the batch for the stand-in's
    heads.
    """
    found: dict[tuple[int, int], dict[tuple[int, int], float]] = defaultdict(dict)
    columns = ("num_heads", "num_key_value_heads", "batch_size", column, "latency", *_DTYPES)
    for row in rows_of(path, columns):
        if all(row.text(name) == dtype for name, dtype in _DTYPES.items()):
            pair = row.count("num_heads"), row.count("num_key_value_heads")
            place = row.count("batch_size"), row.count(column)
            found[pair][place] = row.number("latency") / 1e3
    stand_in = _stand_in(heads, kv_heads, found)
    if stand_in is None:
        raise ProfileError(f"{path}: nothing stands for {heads} heads on {kv_heads} key heads")
    return _surface(found[stand_in]), kv_heads // stand_in[1]


def _stand_in(
    heads: int, kv_heads: int, known: Iterable[tuple[int, int]]
) -> tuple[int, int] | None:
    """The tabulated head counts of the same grouping that divide the wanted ones, the largest."""
    group = heads // kv_heads
    fitting = [pair for pair in known if pair[0] == group * pair[1] and kv_heads % pair[1] == 0]
    return max(fitting, default=None)


def _decode(folder: Path, heads: int, kv_heads: int, layers: int, limit: int) -> Cells:
    path = one_of(folder, "**/generation_attention_perf.txt")
    by_step, times = _attention(path, heads, kv_heads, "step")
    return {
        (batch, int(step) + 1): layers * by_step(batch * times, step)
        for batch in _BATCHES
        for step in by_step.columns
        if step < limit
    }


def _prefill(folder: Path, heads: int, kv_heads: int, layers: int, limit: int) -> Cells:
    path = one_of(folder, "**/context_attention_perf.txt")
    by_prompt, times = _attention(path, heads, kv_heads, "isl")
    longest = max(size for size in by_prompt.columns if size <= limit)
    pair_s = 2.0 * by_prompt(times, longest) / longest**2
    return {
        (int(size), before): layers * (by_prompt(times, size) + pair_s * size * before)
        for size in by_prompt.columns
        for before in _BEFORE
        if size <= limit
    }


def _communication(folder: Path, architecture: Architecture, tp: int) -> Curve:
    """Seconds of a step's all-reduces by its tokens."""
    if tp == 1:
        return Curve((0.0,), (0.0,))
    spec = architecture.spec
    path = one_of(folder, "**/custom_allreduce_perf.txt")
    tokens, times = [], []
    for row in rows_of(path, ("backend", "num_gpus", "message_size", "latency")):
        if row.text("backend") == "vllm_graph" and row.count("num_gpus") == tp:
            tokens.append(row.number("message_size") / (_BYTES * spec.hidden_size))
            times.append(2 * spec.num_layers * row.number("latency") / 1e3)
    if not tokens:
        raise ProfileError(f"{path}: no row of {tp} devices")
    return fit_curve(np.asarray(tokens).tolist(), times)

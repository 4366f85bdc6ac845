"""Which tiles attention is fastest with: `python -m benchmarks.gpu.speed.attention_sweep`.

Prints GB/s of keys and values read (decode) or TFLOP/s of what causality leaves (prefill), one line
for each choice of tiles and one column for each case; `*` marks what the engine chooses now, and
the last lines of a table say which choice was best in each case. It takes some minutes, most of
them to compile: `--part` and `--kv` narrow it. `--dry-run` takes tiny sizes and runs without a GPU
in Triton's interpreter (TRITON_INTERPRET=1).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.gpu.timing import seconds
from daemon.engine.cuda.triton import decode, prefill
from daemon.engine.cuda.triton.tiles import Tiling, capability_of, decode_tiling, prefill_tiling
from daemon.engine.kv.eight_bit import KV_DTYPES
from daemon.engine.kv.pool import PagedKV

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
DTYPE = torch.bfloat16
SCALE = HEAD_DIM**-0.5
POOL_BYTES = 512 << 20
"""Layers take turns over so much, so that no call finds its keys in the device's cache."""
DECODES = ((1, 1024), (1, 32_768), (32, 1024), (128, 1024), (256, 1024))  # (rows, context)
PREFILLS = ((0, 512), (0, 4096), (30_720, 2048))  # (start, count) of one row
PREFILL_LAYERS = 2
TINY_DECODES, TINY_PREFILLS = ((2, 40),), ((3, 20),)
WAVES = (1, 2, 3, 4)
"""Least numbers of programs for each SM that are tried with the engine's own tiles."""

Measure = Callable[[Tiling], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is tried, and its name in the table."""

    name: str
    tiling: Tiling
    waves: int = decode._WAVES


def main() -> None:
    """Sweep, and print."""
    parser = argparse.ArgumentParser(prog="attention_sweep", description=__doc__)
    parser.add_argument("--part", choices=("all", "decode", "prefill"), default="all")
    parser.add_argument("--kv", choices=("all", "auto", "int8", "fp8"), default="all")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    tiny = arguments.dry_run
    if not tiny and not torch.cuda.is_available():
        parser.error("no CUDA device: --dry-run for what a CPU can try")
    device = torch.device("cpu" if tiny else "cuda")
    for kind in ("auto", "int8", "fp8") if arguments.kv == "all" else (arguments.kv,):
        kv_dtype = KV_DTYPES["" if kind == "auto" else kind]
        if arguments.part in ("all", "decode"):
            sizes = TINY_DECODES if tiny else DECODES
            cases = {f"{r} x {c}": _decode(device, kv_dtype, r, c) for r, c in sizes}
            _table(f"decode, KV {kind}: GB/s", cases, _decode_choices(device, kv_dtype))
        if arguments.part in ("all", "prefill"):
            sizes = TINY_PREFILLS if tiny else PREFILLS
            cases = {f"{s} + {c}": _prefill(device, kv_dtype, s, c) for s, c in sizes}
            _table(f"prefill, KV {kind}: TFLOP/s", cases, _prefill_choices(device, kv_dtype))


def _decode_choices(device: torch.device, kv_dtype: torch.dtype | None) -> list[Choice]:
    chosen = decode_tiling(HEAD_DIM, DTYPE, kv_dtype or DTYPE)
    sizes = product((32, 64, 128), (2, 4), (2, 3, 5))
    tilings = [
        replace(chosen, keys=keys, num_warps=warps, num_stages=stages)
        for keys, warps, stages in (sizes if device.type == "cuda" else [(32, 4, 2)])
    ]
    choices = [Choice(_name(tiling, chosen), tiling) for tiling in tilings]
    return choices + [Choice(f"{_name(chosen, chosen)} {w} waves", chosen, w) for w in WAVES]


def _prefill_choices(device: torch.device, kv_dtype: torch.dtype | None) -> list[Choice]:
    chosen = prefill_tiling(HEAD_DIM, DTYPE, kv_dtype or DTYPE, capability_of(device))
    sizes = product((32, 64, 128), ((64, 4), (128, 4), (128, 8)), (2, 3, 4))
    tilings = [
        replace(chosen, keys=keys, rows=rows, num_warps=warps, num_stages=stages)
        for keys, (rows, warps), stages in (sizes if device.type == "cuda" else [(32, (64, 4), 2)])
    ]
    return [Choice(_name(tiling, chosen), tiling) for tiling in tilings]


def _name(tiling: Tiling, chosen: Tiling) -> str:
    sizes = f"{tiling.rows} rows {tiling.keys} keys {tiling.num_warps} warps"
    return f"{'*' if tiling == chosen else ' '} {sizes} {tiling.num_stages} stages"


def _table(title: str, cases: dict[str, Measure], choices: list[Choice]) -> None:
    """A line as soon as its figures are known."""
    print(f"\n{title}\n{'':<46}" + "".join(f"{case:>14}" for case in cases), flush=True)
    best = dict.fromkeys(cases, (0.0, "nothing"))
    for choice in choices:
        figures = []
        for case, measure in cases.items():
            try:
                with patch.object(decode, "_WAVES", choice.waves):
                    rate = measure(choice.tiling)
            except OutOfResources:
                figures.append(f"{'does not fit':>14}")
                continue
            figures.append(f"{rate:14.4g}")
            best[case] = max(best[case], (rate, choice.name))
        print(f"{choice.name:<46}" + "".join(figures), flush=True)
    for case, (rate, name) in best.items():
        print(f"best of {case}: {rate:.4g} with {name}", flush=True)


def _decode(device: torch.device, kv_dtype: torch.dtype | None, rows: int, context: int) -> Measure:
    """Gigabytes of keys and values read a second."""
    token_bytes = 2 * KV_HEADS * HEAD_DIM * (kv_dtype or DTYPE).itemsize
    layers = max(2, min(64, -(-POOL_BYTES // (rows * context * token_bytes))))
    cache, tables = _pool(device, kv_dtype, rows, context, layers if device.type == "cuda" else 2)
    query = torch.randn(rows, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    lens = torch.full((rows,), context, dtype=torch.int32, device=device)

    def rate(tiling: Tiling) -> float:
        def attend() -> None:
            for layer in range(cache.num_layers):
                arguments = (query, cache.blocks, layer, tables, lens, SCALE)
                decode.paged_decode_attention(*arguments, kv_scales=cache.scales, tiling=tiling)

        read_bytes = rows * context * cache.block_bytes / BLOCK_SIZE  # of all layers
        return read_bytes / seconds(attend, str(device), _repeats(device)) / 1e9

    return rate


def _prefill(device: torch.device, kv_dtype: torch.dtype | None, start: int, count: int) -> Measure:
    """Trillions of operations a second, of the pairs of query and key that causality leaves."""
    cache, tables = _pool(device, kv_dtype, 1, start + count, PREFILL_LAYERS)
    query = torch.randn(count, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    columns = [
        torch.tensor(column, dtype=torch.int32, device=device)
        for column in ([start], [count], [0, count])
    ]

    def rate(tiling: Tiling) -> float:
        def attend() -> None:
            for layer in range(PREFILL_LAYERS):
                arguments = (query, cache.blocks, layer, tables, *columns, SCALE)
                prefill.paged_prefill_attention(*arguments, kv_scales=cache.scales, tiling=tiling)

        pairs = count * start + count * (count + 1) / 2
        operations = PREFILL_LAYERS * 4 * pairs * HEADS * HEAD_DIM
        return operations / seconds(attend, str(device), _repeats(device)) / 1e12

    return rate


def _pool(
    device: torch.device, kv_dtype: torch.dtype | None, rows: int, tokens: int, layers: int
) -> tuple[PagedKV, torch.Tensor]:
    """A full cache, and the scattered tables of rows of equal lengths."""
    each = -(-tokens // BLOCK_SIZE)
    cache = PagedKV(rows * each, layers, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DTYPE, device, kv_dtype)
    for layer in range(layers):
        numbers = torch.randn(cache.blocks[:, layer].shape, device=device)
        if cache.scales is not None:
            numbers = (numbers * 40).clamp_(-120, 120)
            cache.scales[:, layer] = torch.rand(cache.scales[:, layer].shape, device=device) / 40
        cache.blocks[:, layer] = numbers.to(cache.kv_dtype)
    order = torch.randperm(rows * each, device=device).to(torch.int32)
    return cache, order.view(rows, each)


def _repeats(device: torch.device) -> int:
    return 10 if device.type == "cuda" else 1


if __name__ == "__main__":
    main()

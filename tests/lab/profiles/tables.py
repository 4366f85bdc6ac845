"""Small handmade tables in the published formats; times follow formulas, so that fits are known."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

LAYER_MS = 0.1  # of all operators of a layer, a tile of 64 tokens
OPERATORS = (
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
TOKENS = (1, *range(8, 513, 8))


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    listed = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


def tiled_ms(tokens: int) -> float:
    """A layer pays for whole tiles of 64 tokens."""
    return LAYER_MS * (2 + -(-tokens // 64))


def vidur(folder: Path, reduce_ms: float = 0.05) -> Path:
    """Llama-2-70B at tensor parallel 2; attention costs 1e-7 ms a (chunk, before) pair."""
    model = folder / "compute" / "a100" / "meta-llama" / "Llama-2-70b-hf"
    write_csv(model / "mlp.csv", [_linear(tokens) for tokens in TOKENS])
    chunks = (64, 128, 256, 384, 512)
    prefill = [_attention(1, n, s, 1e-7 * n * (n + 2 * s)) for n in chunks for s in (0, 256, 512)]
    batches = (1, 2, 8, 16, 32, 64)
    decode = [_attention(b, 0, c, 0.01 + 1e-6 * b * c) for b in batches for c in (32, 512, 2048)]
    write_csv(model / "attention.csv", prefill + decode)
    sizes = [16384 * tokens for tokens in range(1, 600, 20)]
    write_csv(
        folder / "network" / "a100_dgx" / "all_reduce.csv",
        [
            {
                "num_workers": 2,
                "devices_per_node": 2,
                "size": size,
                "time_stats.all_reduce.median": reduce_ms,
            }
            for size in sizes
        ],
    )
    return folder


def _linear(tokens: int) -> dict[str, object]:
    row: dict[str, object] = {"num_tokens": tokens, "num_tensor_parallel_workers": 2}
    row["time_stats.emb.median"] = 0.01
    for name in OPERATORS:
        row[f"time_stats.{name}.median"] = tiled_ms(tokens) / len(OPERATORS)
        row[f"time_stats.{name}.std"] = 0.03 * tiled_ms(tokens) / len(OPERATORS)
    return row


def _attention(batch: int, chunk: int, before: int, time_ms: float) -> dict[str, object]:
    return {
        "num_tensor_parallel_workers": 2,
        "batch_size": batch,
        "prefill_chunk_size": chunk,
        "kv_cache_size": before,
        "is_prefill": chunk > 0,
        "time_stats.attn_prefill.median": time_ms if chunk else "",
        "time_stats.attn_decode.median": "" if chunk else time_ms,
    }


def splitwise_rows(hardware: str = "h100-80gb", factor: float = 1.0) -> list[dict[str, object]]:
    """Prompts of 0.1 ms a token, decodes of 30 ms and 0.001 ms a token of context."""
    shapes = [(size, 1) for size in (128, 256, 512, 1024, 2048, 4096)]
    shapes += [(512, batch) for batch in (2, 4, 8, 64)]
    return [_run(hardware, size, batch, factor) for size, batch in shapes for _ in range(3)]


def _run(hardware: str, size: int, batch: int, factor: float) -> dict[str, object]:
    prompt_ms = 1.0 if batch == 64 else 20.0 + 0.1 * size * batch
    return {
        "model": "llama2-70b",
        "hardware": hardware,
        "tensor_parallel": 2,
        "prompt_size": size,
        "batch_size": batch,
        "token_size": 128,
        "prompt_time": prompt_ms * factor,
        "token_time": 30.0 + 0.001 * batch * (size + 64),
        "peak_power": 1.05 if hardware.startswith("a100") else 0.0,
        "average_power": 0.7 if hardware.startswith("a100") else 0.0,
    }


def splitwise(folder: Path) -> Path:
    path = folder / "perf_model.csv"
    rows = splitwise_rows() + splitwise_rows("a100-80gb", 2.0)
    write_csv(path, rows + splitwise_rows("h100-80gb-pcap", 1.3))
    return path


def distserve(folder: Path) -> Path:
    terms = {
        "decoding_large_small_bs_threshold": 95,
        "prefill": [18.0, 0.1, 7e-06],
        "decoding_smallbs": [20.0, 0.0006, 0.04],
        "decoding_largebs": [7.0, 0.0005, 0.16],
    }
    path = folder / "fits.json"
    path.write_text(json.dumps({"facebook/opt-13b": {"1": terms}}))
    return path


def gemm_ms(m: int, n: float, k: float) -> float:
    return 0.002 + 1e-9 * n * k * (1 + m / 512)


def aiconfigurator(folder: Path) -> Path:
    """H200: products bilinear in n and k; attention by its pairs; small head counts alone."""
    kernels = folder / "h200_sxm" / "vllm" / "0.1"
    wide = (128, 4096, 65536)
    write_csv(
        kernels / "gemm_perf.txt",
        [
            {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k) * factor}
            for dtype, factor in (("float16", 1.0), ("fp8", 0.1))
            for m in (1, 8, 16, 32, 64, 128, 512, 2048)
            for n in wide
            for k in wide
        ],
    )
    dtypes = {"attn_dtype": "float16", "kv_cache_dtype": "float16"}
    heads = [{"num_heads": n, "num_key_value_heads": n, **dtypes} for n in (4, 8)]
    write_csv(
        kernels / "context_attention_perf.txt",
        [
            {**pair, "batch_size": b, "isl": n, "latency": 1e-7 * b * n * n}
            for pair in heads
            for b in (1, 2, 4, 8)
            for n in (64, 128, 512, 2048)
        ],
    )
    write_csv(
        kernels / "generation_attention_perf.txt",
        [
            {**pair, "batch_size": b, "step": step, "latency": 0.01 + 1e-6 * b * step}
            for pair in heads
            for b in (1, 16, 256, 2560)
            for step in (1, 511, 2047)
        ],
    )
    write_csv(
        kernels / "custom_allreduce_perf.txt",
        [
            {"backend": "vllm_graph", "num_gpus": 2, "message_size": size, "latency": 0.005}
            for size in (1024, 1 << 20, 1 << 26)
        ],
    )
    return folder

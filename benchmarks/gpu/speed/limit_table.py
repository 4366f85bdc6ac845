"""Limits of Llama 3 8B on a device of given rates: `python -m benchmarks.gpu.speed.limit_table`.

Nothing is measured: it says what `gpu_bench` would call 100 %.
"""

import argparse
from collections.abc import Iterator

from benchmarks.gpu.speed.limits import (
    LLAMA_3_8B,
    Limits,
    decode_rows,
    operators,
    prefill_steps,
    step_limit_s,
)

CONTEXT, CHUNK = 1024, 8192
BATCHES, PROMPTS = (1, 32, 128, 256), (512, 1024, 4096, 32_768)


def table(limits: Limits) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| What | Limit | Tokens/s | by bytes alone |"
    yield "|---|---|---|---|"
    for kv_bytes, kind in ((2, ""), (1, ", 8-bit KV")):
        for batch in BATCHES:
            work = operators(LLAMA_3_8B, decode_rows(batch, CONTEXT), kv_bytes)
            moved_s = sum(one.weight_bytes + one.kv_bytes for one in work) / limits.bytes_per_s
            limit_s = step_limit_s(work, limits)
            name = f"decode, batch {batch}, {CONTEXT} tokens each{kind}"
            rates = f"{batch / limit_s:,.0f} | {batch / moved_s:,.0f}"
            yield f"| {name} | {limit_s * 1e3:.2f} ms | {rates} |"
    for prompt in PROMPTS:
        steps = prefill_steps(prompt, CHUNK)
        limit_s = sum(step_limit_s(operators(LLAMA_3_8B, rows), limits) for rows in steps)
        yield f"| prefill, {prompt} tokens | {limit_s * 1e3:.1f} ms | {prompt / limit_s:,.0f} | |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes-per-s", type=float, default=4.3e12, help="of a copy, both ways")
    parser.add_argument("--operations-per-s", type=float, default=780e12, help="bfloat16 products")
    arguments = parser.parse_args()
    print("\n".join(table(Limits(arguments.bytes_per_s, arguments.operations_per_s))))

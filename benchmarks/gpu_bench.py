"""Measures a GPU's limits, and kernels, swap copies and engine against them. `make gpu-bench`.

Exits 0 when done, 2 where there is no GPU. `--dry-run` walks through all of it with tiny sizes on
the CPU (kernels interpreted), to test this script: its numbers mean nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.report import Figure, write

NO_GPU = 2
BUDGET_S = 540.0


def main(argv: list[str] | None = None) -> int:
    """Measure, print a line for each figure, and write them all."""
    parser = argparse.ArgumentParser(prog="gpu_bench", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args(argv)
    if find_spec("triton") is None:
        print("gpu_bench: Triton is not installed (extra `gpu`)", file=sys.stderr)
        return NO_GPU
    if arguments.dry_run:
        # Before Triton is first imported: its decorators read this.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        print(
            "gpu_bench: torch sees no CUDA device here, so nothing was measured.", file=sys.stderr
        )
        return NO_GPU
    started_s = time.monotonic()
    done: list[Figure] = []
    for figure in _figures("cpu" if arguments.dry_run else "cuda:0", arguments.dry_run):
        print(figure.line(), flush=True)
        done.append(figure)
        if time.monotonic() - started_s > BUDGET_S:
            done.append(Figure("stopped after", BUDGET_S, "s"))
            print(done[-1].line())
            break
    kind = "dry-run" if arguments.dry_run else "bench"
    written = write(kind, "cpu" if arguments.dry_run else "cuda:0", done, arguments.json)
    print(f"{time.monotonic() - started_s:.0f} s, written to {written}")
    return 0


def _figures(device: str, tiny: bool) -> Iterator[Figure]:
    from benchmarks.gpu import kernel_speed, model_speed, swap_speed

    sizes = kernel_speed.TINY if tiny else kernel_speed.FULL
    limits = kernel_speed.measure_limits(device, sizes)
    yield from kernel_speed.kernel_figures(device, sizes, limits)
    yield from swap_speed.swap_figures(device, swap_speed.TINY if tiny else swap_speed.FULL)
    yield from model_speed.model_figures(
        device, model_speed.TINY if tiny else model_speed.FULL, limits
    )


if __name__ == "__main__":
    sys.exit(main())

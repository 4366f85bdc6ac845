"""Checks that need a GPU: kernels, sampler, engine and swapping, by references. `make gpu-check`.

Exits 0 if all is right, 1 if not, 2 where there is no GPU. Without one, `--interpret` runs the
kernels on the CPU through Triton's interpreter, and `--compile` builds them for several GPUs.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.report import Check, write

NO_GPU = 2
BUDGET_S = 540.0
PARTS = ("kernels", "sampler", "engine", "swap")


def main(argv: list[str] | None = None) -> int:
    """Run the checks that the arguments name."""
    arguments = _arguments(argv)
    os.environ["TQDM_DISABLE"] = "1"
    if find_spec("triton") is None:
        print("gpu_check: Triton is not installed (extra `gpu`)", file=sys.stderr)
        return NO_GPU
    if arguments.interpret:
        # Before Triton is first imported: its decorators read this.
        os.environ["TRITON_INTERPRET"] = "1"
        return _run("interpreted", "cpu", _interpreted(), arguments.json)
    if arguments.compile:
        from benchmarks.gpu.compile_checks import compile_checks

        generations = tuple(arguments.generations)
        return _run("compiled", "cpu", compile_checks(generations), arguments.json)

    import torch

    if not torch.cuda.is_available():
        print(
            "gpu_check: torch sees no CUDA device here, so nothing was checked. "
            "`--interpret` and `--compile` need none.",
            file=sys.stderr,
        )
        return NO_GPU
    return _run("check", "cuda:0", _on_gpu(arguments.only or PARTS), arguments.json)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--interpret", action="store_true", help="kernels on the CPU, small shapes")
    parser.add_argument("--compile", action="store_true", help="build the kernels, run nothing")
    parser.add_argument(
        "--generations", type=int, nargs="+", default=[80, 86, 89, 90], help="for --compile"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to check on a GPU")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args(argv)


def _interpreted() -> Iterator[Check]:
    from benchmarks.gpu import engine_checks, kernel_checks, swap_checks
    from benchmarks.gpu.interpreted_engine import with_kernels

    yield from kernel_checks.cache_checks("cpu")
    yield from swap_checks.packing_checks("cpu")
    yield from kernel_checks.attention_checks(kernel_checks.SMALL, "cpu")
    yield from engine_checks.engine_checks(
        "cpu", names=("Llama",), dtypes=("float32",), num_tokens=3, runner=with_kernels
    )


def _on_gpu(parts: Iterable[str]) -> Iterator[Check]:
    from benchmarks.gpu import engine_checks, kernel_checks, sampler_checks, swap_checks

    if "sampler" in parts:
        yield from sampler_checks.sampler_checks("cuda:0")
    if "engine" in parts:
        yield from engine_checks.engine_checks("cuda:0")
    if "swap" in parts:
        yield from swap_checks.packing_checks("cuda:0")
        yield from swap_checks.swap_checks("cuda:0")
    if "kernels" in parts:
        yield from kernel_checks.cache_checks("cuda:0")
        yield from kernel_checks.far_checks("cuda:0")
        yield from kernel_checks.attention_checks(kernel_checks.SMALL, "cuda:0")
        yield from kernel_checks.attention_checks(kernel_checks.LARGE, "cuda:0")


def _run(kind: str, device: str, checks: Iterator[Check], path: Path | None) -> int:
    """Print each check as it is done, write them all, and say what came of it."""
    started_s = time.monotonic()
    done: list[Check] = []
    for check in checks:
        print(check.line(), flush=True)
        done.append(check)
        if time.monotonic() - started_s > BUDGET_S:
            done.append(Check(f"stopped after {BUDGET_S:.0f} s", float("nan"), 0.0))
            print(done[-1].line(), flush=True)
            break
    failed = sum(not check.ok for check in done)
    written = write(kind, device, done, path)
    print(f"{len(done) - failed} right, {failed} wrong, {time.monotonic() - started_s:.0f} s")
    print(f"written to {written}")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())

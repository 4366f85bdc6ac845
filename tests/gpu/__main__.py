"""Checks that need a GPU: kernels, sampler, engine, swapping and faults. `make gpu-check`.

Each part is a process of its own, some of them at a time: what one breaks, the others do not see.
Results are written after every part. Exits 0 if all is right, 1 if not, 2 where there is no GPU.
Without one, `--interpret` runs the kernels on the CPU through Triton's interpreter, and `--compile`
builds them for several GPUs.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.report import Check, write
from daemon.engine.worker.torch_stubs import leave_out
from daemon.wire.parent import die_with_parent
from tests.gpu.check_parts import PARTS

NO_GPU = 2
TOTAL_S = 570.0
MOST_LANES = 6
LANE_BYTES = 20 << 30
"""The device memory that the largest part may take, about."""
DEVICE = "cuda:0"


def main(argv: list[str] | None = None) -> int:
    """Run the checks that the arguments name."""
    arguments = _arguments(argv)
    os.environ["TQDM_DISABLE"] = "1"
    if find_spec("triton") is None:
        print("gpu-check: Triton is not installed (extra `gpu`)", file=sys.stderr)
        return NO_GPU
    if arguments.interpret:
        # Before Triton is first imported: its decorators read this.
        os.environ["TRITON_INTERPRET"] = "1"
        leave_out()
        from tests.gpu.interpreted import interpreted_checks
        from tests.gpu.patched_once import patch_once

        patch_once()
        return _run("interpreted", interpreted_checks(), arguments.json)
    if arguments.compile:
        from tests.gpu.compiled.compile_checks import compile_checks

        return _run("compiled", compile_checks(tuple(arguments.generations)), arguments.json)

    import torch

    if not torch.cuda.is_available():
        print(
            "gpu-check: torch sees no CUDA device here, so nothing was checked. "
            "`--interpret` and `--compile` need none.",
            file=sys.stderr,
        )
        return NO_GPU
    if arguments.rows:
        return _part(arguments.only[0], arguments.rows)
    from tests.gpu.check_run import run_parts

    chosen = [part for part in PARTS if not arguments.only or part.name in arguments.only]
    lanes = arguments.lanes or _lanes(torch.cuda.get_device_properties(0).total_memory)
    return run_parts(chosen, DEVICE, lanes, arguments.seconds, arguments.json)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--interpret", action="store_true", help="kernels on the CPU, small shapes")
    parser.add_argument("--compile", action="store_true", help="build the kernels, run nothing")
    parser.add_argument(
        "--generations", type=int, nargs="+", default=[80, 86, 89, 90], help="for --compile"
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--lanes", type=int, help="parts at a time; as many as fit if not given")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all parts together")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # a part's own process
    return parser.parse_args(argv)


def _lanes(total_bytes: int) -> int:
    """How many parts fit this machine at a time: compiling takes cores, models take memory."""
    return max(1, min(MOST_LANES, (os.cpu_count() or 1) // 2, total_bytes // LANE_BYTES))


def _part(name: str, path: Path) -> int:
    """Be one part: its results go to a file, line by line."""
    from benchmarks.gpu.parts import Rows
    from tests.gpu.check_parts import part_of

    die_with_parent()
    rows = Rows(path)
    try:
        for check in part_of(name).checks(DEVICE):
            rows.append(check)
    except BaseException as error:
        rows.fault(error)
        raise
    return 0


def _run(kind: str, checks: Iterator[Check], path: Path | None) -> int:
    """Print each check as it is done, write them all, and say what came of it."""
    started_s = time.monotonic()
    done: list[Check] = []
    for check in checks:
        print(check.line(), flush=True)
        done.append(check)
    failed = sum(not check.ok for check in done)
    written = write(kind, "cpu", done, path)
    print(f"{len(done) - failed} right, {failed} wrong, {time.monotonic() - started_s:.0f} s")
    print(f"written to {written}")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())

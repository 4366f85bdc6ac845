"""Measures a GPU's limits, and llmd against them: kernels, engine, daemon. `make gpu-bench`.

Each part is a process of its own with a time of its own; what one breaks, the others do not see.
Results are written after every part, so that a run which is cut off loses nothing. Exits 0 when
done (parts that failed are named in the results), 2 where there is no GPU. `--dry-run` walks
through all of it with tiny sizes on the CPU (kernels interpreted), to test the scripts: its
numbers mean nothing.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.gpu.parts import Row, Rows, run_part
from benchmarks.gpu.speed.bench_parts import PARTS
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.limits import Limits
from daemon.config.paths import default_cache
from daemon.engine.process import keep_compiled, share_cores, stay_offline

NO_GPU = 2
BUDGET_S = 540.0
LIMITS_S = 120.0
LEAST_S = 15.0
"""A part that has less time left is not begun."""


def main(argv: list[str] | None = None) -> int:
    """Run all parts, or be one of them."""
    arguments = _arguments(argv)
    if find_spec("triton") is None:
        print("gpu_bench: Triton is not installed (extra `gpu`)", file=sys.stderr)
        return NO_GPU
    if arguments.dry_run:
        # Before Triton is first imported: its decorators read this.
        os.environ["TRITON_INTERPRET"] = "1"
    # As a worker does; parts and daemons inherit it, and share what they compile.
    share_cores()
    stay_offline()
    keep_compiled(default_cache())
    signal.signal(signal.SIGTERM, _stop)
    if arguments.part:
        return _be_part(arguments)
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        print(
            "gpu_bench: torch sees no CUDA device here, so nothing was measured.", file=sys.stderr
        )
        return NO_GPU
    return _run_parts(arguments)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_bench", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="for all")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--part", choices=["limits", *PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--limits", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _run_parts(arguments: argparse.Namespace) -> int:
    """The parent: it starts the parts one after another and writes down what they find."""
    from benchmarks.gpu.report import versions
    from benchmarks.gpu.speed.results import Results

    ends_s = time.monotonic() + arguments.budget
    device = "cpu" if arguments.dry_run else "cuda:0"
    results = Results(versions(device), arguments.json, arguments.dry_run)
    limits = Limits(0.0, 0.0)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
        for name in ["limits", *arguments.only]:
            left_s = ends_s - time.monotonic()
            if reason := left_out(name, left_s, limits):
                results.ended(name, 0.0, reason)
                print(f"{name}: {reason}", flush=True)
                continue
            budget_s = min(left_s, LIMITS_S if name == "limits" else PARTS[name].budget_s)
            command = _part_command(name, budget_s, limits, arguments.dry_run)
            ended = run_part(
                command, Path(folder, name), budget_s, heard=partial(results.heard, name)
            )
            results.heard(name, ended.rows)
            results.ended(name, ended.elapsed_s, ended.fault)
            print(f"{name}: {ended.elapsed_s:.0f} s {ended.fault}".rstrip(), flush=True)
            if name == "limits":
                limits = limits_of(ended.rows)
                results.limits(asdict(limits))
    _conclude(results.document(), results.path)
    return 0


def _part_command(name: str, budget_s: float, limits: Limits, dry_run: bool) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_bench", "--part", name]
    command += ["--limits", json.dumps(asdict(limits)), "--budget", str(budget_s)]
    return [*command, "--dry-run"] if dry_run else command


def _conclude(document: dict[str, Any], path: Path) -> None:
    """The fractions beside their goals, and where everything is."""
    from benchmarks.gpu.speed.plot import plot

    for key, goal in document["goals"].items():
        share = document["fractions"].get(key)
        said = f"{100 * share:5.1f} %" if share is not None else document["missing"][key]
        print(f"{key:<12} (goal {100 * goal:.0f} %) {said}")
    print(f"written to {path}")
    if drawn := plot(document, path.with_suffix(".png")):
        print(f"plotted to {drawn}")


def left_out(name: str, left_s: float, limits: Limits) -> str:
    """Why a part is not begun, if so."""
    if left_s < LEAST_S:
        return "no time was left"
    if name == "limits":
        return ""
    if not limits.bytes_per_s:
        return "the device's limits were not measured"
    lacking = [package for package in PARTS[name].needs if find_spec(package) is None]
    return f"not installed: {', '.join(lacking)} (make gpu-wheels)" if lacking else ""


def limits_of(rows: list[Row]) -> Limits:
    """The limits among the first part's rows; zeros where it did not come so far."""
    values = {row["name"]: row["value"] for row in rows}
    return Limits(
        values.get("copy, read + write", 0.0) * 1e9,
        values.get("bf16 matmul, best", 0.0) * 1e12,
        values.get("pinned copy to the host", 0.0) * 1e9,
        values.get("pinned copy from the host", 0.0) * 1e9,
    )


def _be_part(arguments: argparse.Namespace) -> int:
    """A child: it measures one part and writes each figure down at once."""
    rows = Rows(arguments.rows)
    device = "cpu" if arguments.dry_run else "cuda:0"
    try:
        if arguments.part == "limits":
            from benchmarks.gpu.speed import device_limits

            sizes = device_limits.TINY if arguments.dry_run else device_limits.FULL
            figures = device_limits.limit_figures(device, sizes)
        else:
            limits = Limits(**json.loads(arguments.limits))
            job = Job(device, arguments.dry_run, limits, arguments.budget)
            figures = PARTS[arguments.part].figures(job)
        for figure in figures:
            print(figure.line(), flush=True)
            rows.append(figure)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        rows.fault(error)
        traceback.print_exc()
        return 1
    return 0


def _stop(*_: object) -> NoReturn:
    """SIGTERM ends what runs in order: daemons are stopped and folders removed."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    exit_status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written; taking torch and Triton apart again only costs time and prints noise.
    os._exit(exit_status)

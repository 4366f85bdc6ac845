"""Products with weights in blocks on this CPU, beside torch's with float32 and bfloat16.

Billions of multiply-adds per second, of the fastest of a few rounds; each round runs every way of a
size once, one after another, so that a slow moment of the machine meets all of them. For each
format: the fastest way that does not round states, and the fastest of all, with its letter.
Compile times are those of this process: nothing where a cache has the kernels.

    python -m benchmarks.products [--formats Q4_K,Q8_0] [--shapes 4096x2048] [--rounds 9]
"""

import argparse
import os
import time
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from daemon.engine.cpu.choose_products import possible
from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.product_implementations import EXACT, ProductWay, always
from daemon.engine.cpu.quantised import QuantisedProduct
from daemon.engine.cpu.team import Team
from daemon.engine.cpu.vectors import target_has
from daemon.models.formats import FORMATS
from tests.engine.quantised.random_blocks import random_weight

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHAPES = "4096x2048,576x576,1536x576"
FEATURES = (
    "avx2",
    "f16c",
    "avx512f",
    "avx512vnni",
    "avxvnni",
    "avx512bf16",
    "amx-int8",
    "amx-bf16",
)
LETTERS = dict(zip(ProductWay, "fFrRmpb", strict=True))
_MIN_S = 2e-3
"""A round repeats what takes less."""

Run = Callable[[], object]


def timed(run: Run, repeats: int) -> float:
    begin_s = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin_s) / repeats


def fastest(runs: dict[object, Run], rounds: int) -> dict[object, float]:
    """Seconds of each, at best."""
    repeats = {name: max(1, int(_MIN_S / timed(run, 1))) for name, run in runs.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], timed(run, repeats[name]))
    return best


def plain(rows: int, columns: int, count: int) -> dict[object, Run]:
    """torch's own products."""
    weight, states = torch.randn(rows, columns), torch.randn(count, columns)
    narrow, narrow_states = weight.bfloat16(), states.bfloat16()

    def float32() -> torch.Tensor:
        return torch.mv(weight, states[0]) if count == 1 else linear(states, weight)

    return {"float32": float32, "bfloat16": lambda: linear(narrow_states, narrow)}


def of_format(name: str, rows: int, columns: int, count: int, team: Team) -> dict[object, Run]:
    """Every way that is possible."""
    weight, states = random_weight(name, rows, columns), torch.randn(count, columns)
    ways = {*possible(weight, count, True), *possible(weight, count, False)}

    def run(way: ProductWay) -> Run:
        product = QuantisedProduct([weight], None, team, always([weight], way))
        product(states)  # compiles
        return lambda: product(states)

    return {way: run(way) for way in ways}


def report(shape: str, formats: list[str], rounds: int, team: Team) -> None:
    rows, columns = (int(number) for number in shape.split("x"))
    print(f"\n[{rows}, {columns}]     " + "".join(f"{f'T={size}':>16}" for size in SIZES))
    lines: dict[str, list[str]] = {}
    for size in SIZES:
        work = rows * columns * size / 1e9
        for name, took_s in fastest(plain(rows, columns, size), rounds).items():
            lines.setdefault(f"torch {name}", []).append(f"{work / took_s:13.1f}   ")
        for form in formats:
            if columns % FORMATS[form].block_len:
                continue
            best = fastest(of_format(form, rows, columns, size, team), rounds)
            cells = []
            for group in (EXACT, set(ProductWay)):
                way = min(group & best.keys(), key=lambda one: best[one])
                cells.append(f"{work / best[way]:6.1f}{LETTERS[way]}")
            lines.setdefault(form, []).append(f"{' '.join(cells):>16}")
    for name, cells in lines.items():
        print(f"{name:16}" + "".join(cells))


def compile_times(formats: list[str], team: Team) -> None:
    """Process seconds until every way of a format has run once."""
    for form in formats:
        begin_s = time.process_time()
        for exact in (True, False):
            for way in {way for size in SIZES for way in possible_of(form, size, exact)}:
                weight = random_weight(form, 32, max(FORMATS[form].block_len, 32))
                product = QuantisedProduct([weight], None, team, always([weight], way))
                product(torch.randn(1, weight.columns))
            kind = "exact" if exact else "all"
            print(f"compiled {form}, {kind} ways: {time.process_time() - begin_s:.2f} s")


def possible_of(form: str, size: int, exact: bool) -> list[ProductWay]:
    return possible(random_weight(form, 1, max(FORMATS[form].block_len, 32)), size, exact)


def processor() -> str:
    with open("/proc/cpuinfo", encoding="ascii") as lines:
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    formats = arguments.formats.split(",")
    print(f"{processor()}, {arguments.threads} threads")
    print("has " + ", ".join(feature for feature in FEATURES if target_has(feature)))
    print("ways: " + ", ".join(f"{letter} {way.value}" for way, letter in LETTERS.items()))
    team = Team(run_program)
    compile_times(formats, team)
    with torch.inference_mode():
        for shape in arguments.shapes.split(","):
            report(shape, formats, arguments.rounds, team)


if __name__ == "__main__":
    main()

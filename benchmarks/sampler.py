"""What a CPU's draw costs: `python -m benchmarks.sampler [--against DIR] [--rounds N]`.

Processor time of `Sampler.sample` by compiled calls for each row of 49,152 logits, in microseconds:
the median of rounds, beside that of another checkout of llmd in DIR. Both take turns, cell by cell,
each in a process of its own with one thread, and draw from the same logits: of a normal
distribution whose standard deviation is 1 (flat: half a row is likely) or 4 (few tokens are).
"""

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

VOCAB_SIZE = 49_152
ROWS = (1, 16, 64)
SPREADS = (1, 4)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 40, top-p 0.95": {"top_k": 40, "top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
}
LEAST_S = 0.02
"""Of processor time that a figure is taken from."""


@dataclass(frozen=True)
class Cell:
    """A kind of draw from so many rows of such logits."""

    kind: str
    spread: int
    rows: int


CELLS = [Cell(*values) for values in product(KINDS, SPREADS, ROWS)]


def serve() -> None:
    """Measure the cell that each line of the input names by its number, and print its figure."""
    import numpy as np
    import torch

    from daemon.engine.cpu.kernels import run_program
    from daemon.engine.cpu.sampler_ops import CpuSamplerOps
    from daemon.engine.cpu.team import Team
    from daemon.engine.sampler import Sampler
    from daemon.state.request import SamplingParams

    torch.set_num_threads(1)
    sampler = Sampler(VOCAB_SIZE, "cpu", (), CpuSamplerOps(VOCAB_SIZE, Team(run_program)))
    noise = torch.randn(max(ROWS), VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    position = 100
    for line in sys.stdin:
        cell = CELLS[int(line)]
        logits = noise[: cell.rows] * cell.spread
        for slot in range(cell.rows):
            sampler.join(slot, SamplingParams(seed=slot, **KINDS[cell.kind]), 5)
        slots = np.arange(cell.rows)
        times, spent_s = -1, 0.0  # the first draw is not counted
        while spent_s < LEAST_S:
            position += 1
            places = np.full(cell.rows, position)
            began_s = time.process_time()
            sampler.sample(logits, slots, places)
            times += 1
            spent_s += (time.process_time() - began_s) if times else 0.0
        print(1e6 * spent_s / times / cell.rows, flush=True)


class Checkout:
    """A process that measures the code of one checkout."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            cwd=folder,
            env={"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def cost_us(self, cell: Cell) -> float:
        """Microseconds a row."""
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        print(CELLS.index(cell), file=asked, flush=True)
        return float(answered.readline())

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    here = Path(__file__).resolve().parent.parent
    folders = [here, *([arguments.against.resolve()] if arguments.against else [])]
    checkouts = [Checkout(folder) for folder in folders]
    found: dict[tuple[Cell, int], list[float]] = {}
    for turn in range(arguments.rounds):
        order = list(enumerate(checkouts))[:: 1 if turn % 2 else -1]
        for cell in CELLS:
            for index, checkout in order:
                found.setdefault((cell, index), []).append(checkout.cost_us(cell))
    for checkout in checkouts:
        checkout.end()
    for cell in CELLS:
        medians = [statistics.median(found[cell, index]) for index in range(len(checkouts))]
        figures = " ".join(f"{median:8.1f}" for median in medians)
        ratio = f"  {medians[0] / medians[1]:5.2f}" if len(medians) > 1 else ""
        print(f"{cell.kind:22} sd {cell.spread} {cell.rows:3} rows {figures}{ratio}", flush=True)


if __name__ == "__main__":
    main()

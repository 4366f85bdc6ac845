"""What a CPU worker's memory grows by with the number of distinct step sizes, and what that costs.

`python -m benchmarks.worker_memory --capacities 16,64,1024` computes prompts of all sizes at random
with a tiny float32 model, each capacity of the libraries' caches in a process of its own,
and prints what imports take that no other process shares, resident memory as steps go, and the
processor's time of a step.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from daemon.engine.process import CACHE_VARIABLES

BLOCK_SIZE = 16
MAX_TOKENS = 512
"""Of a step; sizes lie between 1 and this."""


def memory_mb(field: str = "VmRSS") -> float:
    """This process's memory; RssAnon: what no other process shares."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1e3


def measure(folder: str, steps: int, marks: int) -> dict[str, list[float]]:
    """Resident MB at `marks` points of so many steps, and milliseconds of a step between them; MB
    that imports take.
    """
    from daemon.engine.worker.preload import preload

    preload("cpu")
    imports_mb = memory_mb("RssAnon")
    import torch

    from daemon.engine.worker.start import start
    from daemon.protocol.worker import Load
    from tests.engine.driver import Driver

    num_blocks = 4 * MAX_TOKENS // BLOCK_SIZE
    message = Load(
        model=folder,
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_slots=2,
        max_len=2 * MAX_TOKENS,
        max_batch_tokens=MAX_TOKENS,
        kv_dtype="",
    )
    chance = random.Random(1)
    found: dict[str, list[float]] = {"imports_mb": [imports_mb], "resident_mb": [], "step_ms": []}
    with torch.inference_mode():
        engine = start(message, lambda _stage, _done: None)[0]
        plans = Driver(BLOCK_SIZE, list(range(num_blocks)))
        before_s = time.process_time()
        found["resident_mb"].append(memory_mb())
        for step in range(1, steps + 1):
            one = plans.add(
                0, [chance.randrange(4, 300) for _ in range(chance.randint(1, MAX_TOKENS))]
            )
            work = [(one, len(one.tokens))]
            plans.take(work, engine.run(plans.plan(work)))
            plans.free_blocks += one.blocks
            plans.leave(one)
            if step % (steps // marks) == 0:
                now_s = time.process_time()
                found["resident_mb"].append(memory_mb())
                found["step_ms"].append((now_s - before_s) * 1e3 / (steps // marks))
                before_s = now_s
    return found


def of_capacity(folder: str, capacity: int, steps: int, marks: int) -> dict[str, list[float]]:
    """`measure` in a process of its own; capacity 0: as workers have it."""
    command = [sys.executable, "-m", "benchmarks.worker_memory", "--inside", folder]
    command += ["--steps", str(steps), "--marks", str(marks)]
    own = dict.fromkeys(CACHE_VARIABLES, str(capacity)) if capacity else {}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **own}
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a row for each capacity."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacities", default="0")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--marks", type=int, default=3)
    parser.add_argument("--inside", default="", help="measure here, this model folder")
    arguments = parser.parse_args()
    if arguments.inside:
        from daemon.engine.process import bound_caches, share_cores

        share_cores()
        bound_caches()
        print(json.dumps(measure(arguments.inside, arguments.steps, arguments.marks)))
        return
    from tests.e2e.tiny import tiny_folder

    with tempfile.TemporaryDirectory() as folder:
        tiny_folder(Path(folder) / "tiny")
        for capacity in map(int, arguments.capacities.split(",")):
            found = of_capacity(
                str(Path(folder) / "tiny"), capacity, arguments.steps, arguments.marks
            )
            memory = ", ".join(f"{one:.0f}" for one in found["resident_mb"])
            times = ", ".join(f"{one:.2f}" for one in found["step_ms"])
            print(
                f"capacity {capacity or 'of workers'}: imports {found['imports_mb'][0]:.0f} MB; "
                f"{memory} MB; {times} ms a step",
                flush=True,
            )


if __name__ == "__main__":
    main()

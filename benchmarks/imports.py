"""What a worker's imports take, with and without the parts of torch that llmd leaves out.

Each run is a process of its own, which imports what a worker of a kind of device imports; both ways
take turns. Processor time, and memory of that process alone (anonymous, in MiB).

    python -m benchmarks.imports [--rounds 5] [--kind cpu]
"""

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.peers.machine import describe
from daemon.engine.worker.preload import KINDS

PROGRAM = """
import json, sys, time
from pathlib import Path
from daemon.engine.worker import preload

if {whole}:
    preload.leave_out = lambda: None
preload.preload({kind!r})
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
(anonymous,) = (int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
print(json.dumps([time.process_time(), anonymous / 1024, len(sys.modules)]))
"""
WAYS = {"whole": True, "left out": False}


def once(kind: str, whole: bool) -> list[float]:
    """Processor seconds, MiB, modules."""
    program = PROGRAM.format(kind=kind, whole=whole)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--kind", choices=KINDS, default="cpu", help="default: %(default)s")
    options = parser.parse_args()
    print(", ".join(f"{key} {one}" for key, one in describe().items()))
    found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, whole in WAYS.items():
            found[name].append(once(options.kind, whole))
    print("| torch | processor time, s | memory, MiB | modules |\n|---|---|---|---|")
    for name, runs in found.items():
        cells = []
        for values in zip(*runs, strict=True):
            cells.append(f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

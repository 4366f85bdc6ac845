"""Gemma 3's shape beside llama.cpp's server, in one line, on a machine that does nothing else.

    python -m benchmarks.peers.gemma DIR [--rounds 3] [--threads N]

DIR has `llama-server` and `llama-quantize`, built as the package's docstring says; the model and
its files in Q8_0 and Q4_K_M are made there if they are missing. Three rounds that alternate, each
server alone, of one stream and of eight; the table is printed, and DIR/gemma.json has everything.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("llama-server", "llama-quantize")
FORMATS = ("q8_0", "q4_k_m")


def commands(folder: Path, rounds: int, threads: int) -> list[list[str]]:
    """The modules to run, with their arguments, that make what is missing and compare."""
    made = [] if (folder / "model").exists() else [["model", str(folder / "model")]]
    made = [[*command, "--shape", "gemma"] for command in made]
    quantize = ["make_formats", str(folder), "--quantize", str(folder / "llama-quantize")]
    compare = ["--peers-dir", str(folder), "--servers", "llama", "--formats", *FORMATS]
    compare += ["--modes", "single", "c8", "--rounds", str(rounds), "--alone", "--llmd-files"]
    compare += ["--threads", str(threads), "--out", str(folder / "gemma.json")]
    return [*made, quantize, compare]


def main() -> None:
    """Make what is missing, then compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.gemma", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    lacking = [name for name in PROGRAMS if not (args.folder / name).is_file()]
    if lacking:
        sys.exit(f"{args.folder} has no {' and no '.join(lacking)}: see benchmarks/peers")
    for command in commands(args.folder.resolve(), args.rounds, args.threads):
        module, rest = "benchmarks.peers", command
        if not command[0].startswith("-"):
            module, rest = f"benchmarks.peers.{command[0]}", command[1:]
        subprocess.run([sys.executable, "-m", module, *rest], check=True)


if __name__ == "__main__":
    main()

"""The sweep over tiles, from end to end with tiny sizes; what it says of speed means nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.soak
def test_dry_run_tries_every_kind_of_choice() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.speed.attention_sweep",
        "--dry-run",
        "--kv",
        "int8",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("decode", "prefill"))] == [
        "decode, KV int8: GB/s",
        "prefill, KV int8: TFLOP/s",
    ]
    assert sum("4 waves" in line and line.startswith("*") for line in lines) == 1
    bests = [line.split(" with ") for line in lines if line.startswith("best of")]
    assert len(bests) == 2 and all(float(best.split()[-1]) > 0 for best, _ in bests)

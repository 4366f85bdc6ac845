"""`gpu_bench` from end to end with tiny sizes; what it says of speed here means nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_dry_run_measures_every_part(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks.gpu_bench", "--dry-run", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(written.read_text())["rows"]}
    parts = ("copy,", "bf16 matmul", "decode attention", "prefill attention", "copy_blocks", "swap")
    for part in parts:
        assert any(name.startswith(part) for name in rows)
    assert {"decode batch 1", "decode batch 2", "prefill 20"} <= set(rows)
    assert all(row["value"] > 0 for row in rows.values())

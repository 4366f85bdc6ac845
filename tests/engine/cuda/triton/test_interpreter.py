"""The kernels through Triton's interpreter against their references, as `make gpu-check` runs them.

In a process of its own: Triton decides whether it interprets when it is first imported.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    written = tmp_path_factory.mktemp("kernels") / "interpreted.json"
    command = [sys.executable, "-m", "tests.gpu", "--interpret", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert written.exists(), done.stdout + done.stderr
    content = json.loads(written.read_text())
    assert {"torch", "triton", "python", "device"} <= set(content["versions"])
    assert done.returncode == (0 if all(row["ok"] for row in content["rows"]) else 1)
    return content["rows"]


@pytest.mark.parametrize(
    ("kernel", "at_least"),
    [
        ("decode", 13),
        ("prefill", 22),
        ("write_kv", 18),
        ("copy ", 18),
        ("pack_blocks", 20),
        ("unpack_blocks", 10),
        ("add_norm", 14),
        ("silu_mul", 14),
        ("gelu of", 14),
        ("place", 33),
        ("llama", 4),
        ("qwen3", 4),
        ("move_rows", 5),
        ("product", 12),
        ("blocks unpacked", 45),
        ("blocks multiplied", 50),
        ("expert tiles", 8),
        ("grouped", 50),
        ("clamped gates", 12),
        ("summed shares", 6),
        ("sample", 20),
        ("kept", 4),
        ("edit", 2),
        ("forbid", 1),
        ("states of", 5),
    ],
)
def test_kernel_is_its_reference(rows: list[dict[str, Any]], kernel: str, at_least: int) -> None:
    mine = [row for row in rows if row["name"].startswith(kernel)]
    assert len(mine) >= at_least
    assert not [row for row in mine if not row["ok"]]

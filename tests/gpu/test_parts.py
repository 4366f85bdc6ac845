"""Every part of `make gpu-check` is right on this machine's GPU, in a process of its own."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.parts import run_part
from tests.gpu.check_parts import PARTS, Part
from tests.gpu.check_run import command

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.soak,  # all of them take minutes
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(max(part.budget_s for part in PARTS) + 30),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_part_is_right(part: Part, tmp_path: Path) -> None:
    ended = run_part(command(part.name), tmp_path / "rows.jsonl", part.budget_s)
    assert ended.rows and not ended.fault
    assert not [row for row in ended.rows if not row["ok"]]

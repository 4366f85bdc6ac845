"""The sampler's kernels: what is compiled for a GPU, and what they refuse.

That they draw what they should, `test_interpreter` shows.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daemon.engine.cuda.triton.sample import sample
from tests.gpu.compiled.sampler_compile_checks import sampler_compile_checks

ROOT = Path(__file__).resolve().parents[4]

MANY = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from tests.gpu.sampler_checks import Case, draw_checks
wrong = [c.line() for c in draw_checks(Case(301, 80, 1, torch.float32, 2.0), "cpu") if not c.ok]
assert not wrong, wrong
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_draws_are_those_of_the_cpu() -> None:
    command = [sys.executable, "-c", MANY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr


def test_compiled_once_for_any_number_of_rows() -> None:
    checks = list(sampler_compile_checks((90,), (50_257,), (torch.bfloat16,)))
    assert len(checks) == 10
    assert not [check.line() for check in checks if not check.ok]


def test_no_rows_draw_nothing() -> None:
    drawn = sample(torch.zeros(0, 7), torch.zeros(0, 5), drawing=True, filtering=True)
    assert drawn.shape == (2, 0) and drawn.dtype == torch.int64


def test_logits_of_a_row_must_lie_together() -> None:
    with pytest.raises(ValueError, match="together"):
        sample(torch.zeros(7, 3).T, torch.zeros(3, 5), drawing=False, filtering=False)

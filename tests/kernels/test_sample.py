"""The sampler's kernels: what is compiled for a GPU, and what they refuse.

That they draw what they should, `test_interpreter` shows.
"""

import pytest
import torch

from benchmarks.gpu.sampler_compile_checks import sampler_compile_checks
from daemon.engine.kernels.sample import sample


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

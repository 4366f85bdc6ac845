"""The kernels build for GPUs that are not here, and fit the memory of the smallest of them."""

import torch

from benchmarks.gpu.compile_checks import compile_checks


def test_kernels_build_and_fit() -> None:
    checks = list(compile_checks((86,), (torch.bfloat16,), ((128, 4),)))
    assert len(checks) == 7
    assert not [check for check in checks if not check.ok]
    assert max(check.error for check in checks) > 30_000  # attention does use shared memory

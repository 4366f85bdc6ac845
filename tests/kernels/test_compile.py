"""The kernels build for GPUs that are not here, fit the memory of the smallest, and only once."""

import torch

from benchmarks.gpu.attention_compile_checks import attention_compile_checks
from benchmarks.gpu.compile_checks import SHARED_LIMITS_BYTES, compile_checks
from benchmarks.gpu.report import Check


def test_attention_builds_fits_and_compiles_once() -> None:
    kinds = (None, torch.int8)
    checks = list(attention_compile_checks((86,), (torch.bfloat16,), ((128, 4),), kinds))
    assert len(checks) == 8
    assert not [check.line() for check in checks if not check.ok]
    assert max(check.error for check in checks) > 30_000  # attention does use shared memory


def test_a_part_that_cannot_be_compiled_fails_alone() -> None:
    checks = list(compile_checks(()))
    assert {check.note.split(":")[0] for check in checks} <= {"ModuleNotFoundError"}
    assert Check("too large", SHARED_LIMITS_BYTES[86] + 1, SHARED_LIMITS_BYTES[86]).ok is False

"""The products' kernels build for Hopper, fit it, and nothing is compiled after the choice.

What they compute is tested through the interpreter (`test_interpreter`).
"""

import pytest

pytest.importorskip("triton")

from benchmarks.gpu.product_compile_checks import product_compile_checks


def test_all_kernels_are_there_before_the_first_step() -> None:
    checks = {check.name: check for check in product_compile_checks((90,), ((4096, 4096),), (48,))}
    assert checks.pop("sm_90 products anew").error == 0
    assert len(checks) >= 8
    assert all(check.ok and check.error > 80_000 for check in checks.values())

"""The products' kernels build for Hopper, fit it, wait, and are there before the first step.

What they compute is tested through the interpreter (`test_interpreter`).
"""

import pytest

pytest.importorskip("triton")

from tests.gpu.compiled.product_compile_checks import product_compile_checks


def test_all_kernels_are_there_before_the_first_step_and_wait_in_it() -> None:
    shape = (4096, 4096)
    checks = {check.name: check for check in product_compile_checks((90,), (shape,), (1,))}
    assert checks.pop("sm_90 products anew").error == 0
    assert checks.pop("sm_90 products hasty").error == 0
    assert len(checks) >= 8
    assert all(check.ok for check in checks.values())
    assert any(check.error > 80_000 for check in checks.values())

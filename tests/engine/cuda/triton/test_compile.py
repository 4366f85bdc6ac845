"""The kernels build for GPUs that are not here, fit the memory of the smallest, and only once."""

import pytest
import torch

from tests.gpu.compiled.attention_compile_checks import attention_compile_checks
from tests.gpu.compiled.block_compile_checks import block_compile_checks
from tests.gpu.compiled.compile_checks import PARTS, checks_of
from tests.gpu.compiled.expert_compile_checks import expert_compile_checks
from tests.gpu.compiled.state_compile_checks import (
    CHANNELS,
    CONVOLUTIONS,
    RULES,
    SCANS,
    state_compile_checks,
)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_there(part: str) -> None:
    assert callable(checks_of(part))


def test_products_over_quantised_weights_build_fit_and_are_there_ahead() -> None:
    checks = list(block_compile_checks((86,), ("Q4_K", "IQ4_XS"), (1, 16)))
    assert len(checks) >= 28
    assert not [check.line() for check in checks if not check.ok]


def test_products_of_experts_build_fit_and_compile_once() -> None:
    checks = list(expert_compile_checks((86,), ("MXFP4",)))
    assert len(checks) == 24
    assert not [check.line() for check in checks if not check.ok]


def test_attention_builds_fits_and_compiles_once() -> None:
    kinds = (None, torch.int8)
    checks = list(attention_compile_checks((86,), (torch.bfloat16,), ((128, 4),), kinds))
    assert len(checks) == 10
    assert not [check.line() for check in checks if not check.ok]
    assert max(check.error for check in checks) > 30_000  # attention does use shared memory


def test_states_build_fit_and_compile_once() -> None:
    sizes = RULES[:2], SCANS[:1], CHANNELS[:1], CONVOLUTIONS[:1]
    checks = list(state_compile_checks((90,), (torch.bfloat16,), *sizes))
    assert len(checks) == 10
    assert not [check.line() for check in checks if not check.ok]

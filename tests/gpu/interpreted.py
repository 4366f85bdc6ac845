"""The checks of `python -m tests.gpu --interpret`: small ones for Triton's interpreter on a CPU."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.report import Check
from tests.gpu import (
    block_checks,
    edit_checks,
    expert_checks,
    kept_checks,
    kernel_checks,
    move_checks,
    op_checks,
    pool_checks,
    product_checks,
    sampler_checks,
    state_checks,
    swap_checks,
)


def interpreted_checks() -> Iterator[Check]:
    """Kernels against their references; tests/engine has engines that compute with them."""
    yield from pool_checks.pool_checks("cpu")
    yield from swap_checks.packing_checks("cpu", dtypes=(torch.float32, torch.bfloat16))
    yield from kernel_checks.attention_checks("small", "cpu")
    yield from op_checks.op_checks("cpu")
    yield from move_checks.move_checks("cpu")
    yield from product_checks.product_checks("cpu")
    yield from block_checks.block_checks("cpu")
    yield from expert_checks.expert_checks("cpu")
    yield from sampler_checks.sampler_checks("cpu")
    yield from kept_checks.kept_checks("cpu")
    yield from edit_checks.edit_checks("cpu")
    yield from state_checks.state_checks("cpu")

"""Linear layers that were packed still show their weights to modelling code that looks at them."""

import pytest
import torch

from daemon.engine.linear import PackedLinear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep_plain", [True, False])
def test_packed_weights_can_be_read(dtype: torch.dtype, keep_plain: bool) -> None:
    weight = torch.randn(33, 48).to(dtype)
    layer = PackedLinear(weight, None, keep_plain)
    assert layer.weight.dtype == dtype
    assert torch.equal(layer.weight, weight)

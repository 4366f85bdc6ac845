"""Linear layers that were packed still show their weights to modelling code that looks at them."""

import pytest
import torch
from torch import nn

from daemon.engine.cpu.packed_linear import PackedLinear, can_pack
from daemon.engine.model.linear import packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep_plain", [True, False])
def test_packed_weights_can_be_read(dtype: torch.dtype, keep_plain: bool) -> None:
    weight = torch.randn(33, 48).to(dtype)
    if not can_pack(weight):
        pytest.skip(f"oneDNN does not pack {dtype} on this processor")
    layer = PackedLinear(weight, None, keep_plain)
    assert layer.weight.dtype == dtype
    assert torch.equal(layer.weight, weight)


def test_where_onednn_refuses_bfloat16_the_layer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX2 alone: packing would raise, and plain products are computed."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    layer = nn.Linear(48, 33).to(torch.bfloat16)
    assert packed(layer, keep_plain=True) is layer
    assert isinstance(packed(nn.Linear(48, 33), keep_plain=True), PackedLinear)

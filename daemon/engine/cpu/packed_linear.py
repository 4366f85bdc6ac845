"""A linear layer whose weights oneDNN has laid out for the processor's products."""

import torch
from torch import nn

_PACKED_FOR = 32
"""Tokens that oneDNN lays weights out for; the layout serves other numbers as well."""


class PackedLinear(nn.Module):
    """A linear layer on the CPU: packed weights for several tokens, plain ones for a single one.

    With one token a product only reads its weights, and `mv` over plain rows reads fastest; with
    several, MKL would pack plain weights anew in every call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, keep_plain: bool) -> None:
        super().__init__()
        self.plain = weight if keep_plain else None
        self.bias = bias
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR)
        self.packed_bytes = weight.nbytes

    @property
    def weight(self) -> torch.Tensor:
        """The weights [out_features, in_features], for modelling code that looks at them itself."""
        return self.packed.to_dense() if self.plain is None else self.plain

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., in_features] to [..., out_features]."""
        if self.plain is not None and states.numel() == self.in_features:
            product = torch.mv(self.plain, states.view(-1))
            if self.bias is not None:
                product += self.bias
            return product.view(*states.shape[:-1], -1)
        return torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], None)

    # Nothing hooks into these layers, and the looking for hooks costs as much as a small product.
    __call__ = forward


def can_pack(tensor: torch.Tensor) -> bool:
    """Whether weights like this one are laid out anew here: on a CPU that oneDNN serves."""
    if tensor.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if tensor.dtype == torch.bfloat16:  # without AVX-512 or AVX-NE-CONVERT oneDNN refuses it
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return tensor.dtype == torch.float32

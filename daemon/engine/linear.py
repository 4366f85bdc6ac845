"""Matrix products, prepared at load time for the device that computes them."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from daemon.engine.decoder import Prepare
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear

if TYPE_CHECKING:
    from daemon.engine.cuda.products import Product

_PACKED_FOR = 32
"""Tokens that oneDNN lays weights out for; the layout serves other numbers as well."""
_PRODUCT_TYPES = (torch.bfloat16, torch.float16)


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


def packed(layer: Any, keep_plain: bool, quantised: Prepare = lambda layer: layer) -> Any:
    """What computes the same as a linear layer, faster; the layer itself where nothing does.

    On a CPU a packed twin (`keep_plain`: the plain weights are kept beside it), on a GPU a
    `Product` over the layer's own weight, which `choose_products` can then make fast. `quantised`
    makes it of a layer, or of experts, over quantised weights.
    """
    if isinstance(layer, QuantisedLinear | QuantisedExperts):
        return quantised(layer)
    if not isinstance(layer, nn.Linear):
        return layer
    on_gpu = layer.weight.device.type == "cuda" and layer.weight.dtype in _PRODUCT_TYPES
    if on_gpu and (product := _product_type()):
        return product(layer.weight, layer.bias)
    if can_pack(layer.weight):
        return PackedLinear(layer.weight, layer.bias, keep_plain)
    return layer


@cache
def _product_type() -> "type[Product] | None":
    """`Product`; None where what it needs of Triton is missing, broken or too old: a self-test has
    failed in the same way then, and said so.
    """
    try:
        # Not before it is needed: it brings Triton with it.
        from daemon.engine.cuda.products import Product
    except (ImportError, OSError, RuntimeError):
        return None
    return Product


def linear_bytes(model: nn.Module) -> int:
    """Bytes of the weights of all linear layers."""
    layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    return sum(layer.weight.nbytes for layer in layers)


def quantised_bytes(layers: Iterable[object]) -> int:
    """Bytes of the quantised weights of some layers; shared ones count once."""
    held = [weight for layer in layers for weight in getattr(layer, "weights", ())]
    sizes = {one.data.data_ptr(): one.size_bytes for one in held}
    return sum(sizes.values())

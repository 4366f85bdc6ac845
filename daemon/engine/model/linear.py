"""Matrix products, prepared at load time for the device that computes them."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from daemon.engine.cpu.packed_linear import PackedLinear, can_pack
from daemon.engine.layers.mlp import Prepare
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear

if TYPE_CHECKING:
    from daemon.engine.cuda.products import Product

_PRODUCT_TYPES = (torch.bfloat16, torch.float16)


def packed(layer: Any, keep_plain: bool, quantised: Prepare = lambda layer: layer) -> Any:
    """A faster equivalent of a linear layer; the layer itself where there is none.

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
    sizes = {weight.data.data_ptr(): weight.size_bytes for weight in held}
    return sum(sizes.values())

"""Replaces the layers of a model by the modules that compute them here."""

import copy
from typing import Any

from torch import nn

from daemon.engine.layers.mlp import Prepare
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear

_REPLACED = (nn.Linear, QuantisedLinear, QuantisedExperts)


def prepare_linears(model: nn.Module, prepare: Prepare) -> None:
    """Replace every linear layer, and all experts, below a module by faster modules."""
    for name, child in list(model.named_children()):
        if type(child) in _REPLACED:
            setattr(model, name, prepare(child))
        else:
            prepare_linears(child, prepare)


def prepared(module: Any, prepare: Prepare) -> Any:
    """A module like another, with its layers replaced; the other stays as it is."""
    twin = copy.copy(module)
    twin._modules = {
        name: prepare(child) if type(child) in _REPLACED else prepared(child, prepare)
        for name, child in module.named_children()
    }
    return twin

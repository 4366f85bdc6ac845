"""Replaces the layers of a model by what computes them here."""

from torch import nn

from daemon.engine.decoder import Prepare
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear


def prepare_linears(model: nn.Module, prepare: Prepare) -> None:
    """Replace every linear layer, and all experts, below a module by what computes faster here."""
    for name, child in list(model.named_children()):
        if type(child) in (nn.Linear, QuantisedLinear, QuantisedExperts):
            setattr(model, name, prepare(child))
        else:
            prepare_linears(child, prepare)

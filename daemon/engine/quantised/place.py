"""Puts quantised weights into a model: layers are replaced before transformers loads the rest."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from daemon.engine.quantised.files import Packed
from daemon.engine.quantised.linear import QuantisedEmbedding, QuantisedLinear
from daemon.models.shape import ModelError

_TAKES = (nn.Linear, nn.Embedding)


def claimed(model_class: Any, config: Any, packed: Collection[str]) -> dict[str, str]:
    """Layers of a model that take a packed weight of these names, each with the name of the weight.

    A layer whose own is not there takes that of the layer that it is tied to.
    """
    with torch.device("meta"):
        model = model_class(config)
    layers = {name: module for name, module in model.named_modules() if type(module) in _TAKES}
    found = {name: f"{name}.weight" for name in layers if f"{name}.weight" in packed}
    if getattr(config, "tie_word_embeddings", False):
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        tied = [name for name, module in layers.items() if module in (head, embedding)]
        names = {found[name] for name in tied if name in found}
        if names:
            found |= dict.fromkeys(tied, names.pop())
    return found


def with_layers(model_class: Any, places: Mapping[str, str]) -> Any:
    """A model class whose models have layers for quantised weights in some `places`."""
    shares = len(set(places.values())) < len(places)

    class Quantised(model_class):
        """transformers' class, with some of its layers replaced."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            if shares:  # the layers themselves: there is no parameter to tie
                config.tie_word_embeddings = False
            super().__init__(config, *args, **kwargs)
            for name in places:
                parent, _, own = name.rpartition(".")
                owner = self.get_submodule(parent)
                setattr(owner, own, _layer(getattr(owner, own)))

    for said in ("__name__", "__qualname__", "__module__"):
        setattr(Quantised, said, getattr(model_class, said))
    return Quantised


def _layer(layer: Any) -> nn.Module:
    """The layer for quantised weights in place of a plain one."""
    if isinstance(layer, nn.Embedding):
        return QuantisedEmbedding(
            layer.num_embeddings, layer.embedding_dim, torch.get_default_dtype()
        )
    return QuantisedLinear(layer.in_features, layer.out_features, layer.bias)


def fill(model: nn.Module, places: Mapping[str, str], packed: Packed) -> None:
    """Give the layers at `places` their weights; who shares a name shares the weight.

    Raises ModelError for a weight of another size than its layer's.
    """
    made = {name: packed[name]() for name in dict.fromkeys(places.values())}
    for name, weight in places.items():
        layer: Any = model.get_submodule(name)
        stored = [made[weight].rows, made[weight].columns]
        wanted = [layer.out_features, layer.in_features]
        if stored != wanted:
            said = f"{weight} is {stored}, and its configuration asks for {wanted}"
            raise ModelError(f"weights of another size: {said}")
        layer.weights = [made[weight]]

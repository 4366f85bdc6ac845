"""Puts quantised weights into a model: layers are replaced before transformers loads the rest."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from transformers.initialization import no_init_weights

from daemon.engine.quantised.experts import (
    ExpertLayout,
    QuantisedExperts,
    SentExperts,
    layout_of,
)
from daemon.engine.quantised.files import Packed
from daemon.engine.quantised.linear import QuantisedEmbedding, QuantisedLinear, scale_of
from daemon.engine.quantised.parts import StackPart, stored_parts, target_of
from daemon.models.gguf_index import parts_below
from daemon.models.shape import ModelError


@dataclass(frozen=True, slots=True)
class PackedPlaces:
    """Which layers of a model take packed weights: by name, those that are its rows, in order."""

    layers: dict[str, tuple[str, ...]]  # linear layers and embeddings
    experts: dict[str, str] = field(default_factory=dict)
    """Modules that are replaced as a whole, and where their experts are then."""
    of_experts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the layers in these

    @property
    def all(self) -> dict[str, tuple[str, ...]]:
        """All layers."""
        return self.layers | self.of_experts

    @property
    def taken(self) -> set[str]:
        """The names of all weights that layers take."""
        return {name for names in self.all.values() for name in names}


def claimed(
    model_class: Any, config: Any, packed: Collection[str], plain: Collection[str] = ()
) -> PackedPlaces:
    """The places of packed weights of these names in a model.

    A layer whose own is not there takes that of the layer that it is tied to; experts are replaced
    where every weight of theirs is there, among the `plain` ones too.
    """
    model = outline(model_class, config)
    layers = {name: module for name, module in model.named_modules() if _takes(module)}
    stored = _by_parameter(model, packed)
    found: dict[str, tuple[str, ...]] = {
        name: (stored[f"{name}.weight"],) for name in layers if f"{name}.weight" in stored
    }
    joined = parts_below(packed)
    found |= {name: joined[f"{name}.weight"] for name in layers if f"{name}.weight" in joined}
    if getattr(config, "tie_word_embeddings", False):
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        tied = [name for name, module in layers.items() if module in (head, embedding)]
        names = {found[name] for name in tied if name in found}
        if names:
            found |= dict.fromkeys(tied, min(names))
    found_in = model.named_modules()
    experts = {name: (module, it) for name, module in found_in if (it := layout_of(module))}
    if not experts:
        return PackedPlaces(found)
    parts = stored_parts(model, {*packed, *plain} - PackedPlaces(found).taken)
    whole = {name: rows for name, held in experts.items() if (rows := _rows(name, *held, parts))}
    of_experts = {layer: names for rows in whole.values() for layer, names in rows.items()}
    return PackedPlaces(found, {name: _place(name, experts[name][1]) for name in whole}, of_experts)


def outline(model_class: Any, config: Any) -> Any:
    """A model without numbers, to look at its modules; none are drawn either, for which torch
    would import what a worker leaves out.
    """
    with torch.device("meta"), no_init_weights():
        return model_class(config)


def _by_parameter(model: Any, names: Collection[str]) -> dict[str, str]:
    """Stored weights by the names that a model has for them, which its checkpoints may not have."""
    target = target_of(model)
    return {target(name): name for name in names} | {name: name for name in names}


def _takes(module: nn.Module) -> bool:
    """Whether a layer is replaced: a plain one, or an embedding that scales its rows."""
    usual = type(module) in (nn.Linear, nn.Embedding)
    return usual or (isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale"))


def _place(name: str, layout: ExpertLayout) -> str:
    """The place of experts in that of a module."""
    return f"{name}.each" if layout.every_token else name


def _rows(
    name: str, experts: Any, layout: ExpertLayout, parts: dict[str, dict[StackPart, str]]
) -> dict[str, tuple[str, ...]] | None:
    """The layers of some experts, with their weights; None where one is missing."""
    found = dict[str, tuple[str, ...]]()
    place = _place(name, layout)
    for parameter, layer in layout.parameters.items():
        stored = parts.get(f"{name}.{parameter}", {})
        below = sorted({part.below for part in stored})
        for expert in range(len(getattr(experts, parameter))):
            names = [stored.get(StackPart(expert, pattern)) for pattern in below]
            if not names or None in names:
                return None
            found[f"{place}.{layer}.{expert}"] = tuple(weight for weight in names if weight)
    return found


def with_layers(model_class: Any, places: PackedPlaces) -> Any:
    """A model class whose models have layers for quantised weights in some `places`."""
    shares = len(set(places.layers.values())) < len(places.layers)

    class Quantised(model_class):
        """transformers' class, with some of its layers replaced."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            if shares:  # the layers themselves: there is no parameter to tie
                config.tie_word_embeddings = False
            super().__init__(config, *args, **kwargs)
            for name in (*places.layers, *places.experts):
                parent, _, own = name.rpartition(".")
                owner = self.get_submodule(parent)
                place = places.experts.get(name, name)
                apart = len(places.of_experts.get(f"{place}.gate_up.0", ())) > 1
                setattr(owner, own, _layer(getattr(owner, own), apart, owner))

    for said in ("__name__", "__qualname__", "__module__"):
        setattr(Quantised, said, getattr(model_class, said))
    return Quantised


def _layer(layer: Any, apart: bool, owner: Any) -> nn.Module:
    """The layer for quantised weights in place of a plain one of `owner`; `apart`: see
    QuantisedExperts.
    """
    if isinstance(layer, nn.Embedding):
        return QuantisedEmbedding(
            layer.num_embeddings, layer.embedding_dim, torch.get_default_dtype(), scale_of(layer)
        )
    if isinstance(layer, nn.Linear):
        return QuantisedLinear(layer.in_features, layer.out_features, layer.bias)
    layout = layout_of(layer)
    if layout is not None and layout.every_token:
        return SentExperts(layer, owner.top_k, apart)
    return QuantisedExperts(layer, apart)


def fill(
    model: nn.Module,
    places: PackedPlaces,
    packed: Packed,
    below: Packed = MappingProxyType({}),
    names_below: Collection[str] = (),
) -> None:
    """Give the layers at `places` their weights; layers that share a name share the weight. Those
    of `names_below` take theirs from `below`.

    Raises ModelError for a weight of another size than its layer's.
    """
    for name in names_below:
        names = places.of_experts[name]
        layer: Any = model.get_submodule(name)
        layer.weights = [below[weight]() for weight in names]
        _check_size(layer, names, [(weight.rows, weight.columns) for weight in layer.weights])
    layers = {name: names for name, names in places.all.items() if name not in names_below}
    made = {names: [packed[name]() for name in names] for names in dict.fromkeys(layers.values())}
    for name, names in layers.items():
        layer = model.get_submodule(name)
        weights = made[names]
        _check_size(layer, names, [(weight.rows, weight.columns) for weight in weights])
        layer.weights = list(weights)


def check_sizes(
    model: nn.Module, places: PackedPlaces, sides: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ModelError for a weight of another size than its layer's at one of the `places`."""
    for name, names in places.all.items():
        _check_size(model.get_submodule(name), names, [sides[weight] for weight in names])


def _check_size(layer: Any, names: tuple[str, ...], sides: Sequence[tuple[int, ...]]) -> None:
    """Check that the rows of a layer are those of its weights one after the other."""
    stored = [sum(rows for rows, _ in sides), *{columns for _, columns in sides}]
    wanted = [layer.out_features, layer.in_features]
    if stored != wanted:
        said = f"{' and '.join(names)} is {stored}, and its configuration asks for {wanted}"
        raise ModelError(f"weights of another size: {said}")

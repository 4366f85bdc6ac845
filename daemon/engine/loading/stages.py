"""This stage's layers of a model: the others are never made, and their weights never read.

Layers keep their numbers among the model's modules, so that weights are found by their own names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from daemon.engine.layers.stages import StageEntry, StageHead, StageLinks
from daemon.engine.loading.shards import StoredParts, place_of
from daemon.engine.quantised.place import outline
from daemon.models.rank_shares import Range
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError

_KINDS = ("layer_types", "layers_block_type")
"""The fields of configurations by which modelling code chooses the mask of each layer."""


@dataclass(frozen=True, slots=True)
class StageShare:
    """A stage's part of a model."""

    links: StageLinks
    layers: str  # the module with all layers
    embedding: str
    head: str
    dropped: tuple[str, ...]  # of these two, where the stage has no use for them
    unused: frozenset[str]  # stored tensors that this stage does not take

    def shrink(self, model: Any) -> None:
        """Take from a new model, which has no weights yet, what other stages have."""
        layers = model.get_submodule(self.layers)
        for number in range(len(layers)):
            if not self.links.layers.first <= number < self.links.layers.last:
                del layers._modules[str(number)]
        for name in self.dropped:
            owner, own = place_of(model, name)
            setattr(owner, own, nn.Module())

    def join(self, model: Any) -> None:
        """Put the ends of a stage around a loaded model's layers, which count from 0 now."""
        config = model.config
        _keep_kinds(config, self.links.layers)
        config.num_hidden_layers = self.links.layers.size
        layers = list(model.get_submodule(self.layers))
        for layer in layers:
            for module in layer.modules():
                if hasattr(module, "layer_idx"):
                    module.layer_idx -= self.links.layers.first
        owner, own = place_of(model, self.head)
        inner = getattr(owner, own) if self.links.is_last else None
        head = StageHead(inner, self.links, config.vocab_size)
        setattr(owner, own, head)
        if not self.links.is_last:
            layers[-1].register_forward_hook(head.leave)
        if self.links.stage:
            owner, own = place_of(model, self.embedding)
            entry = StageEntry(self.links, config.hidden_size)
            setattr(owner, own, entry)
            layers[0].register_forward_pre_hook(entry.enter)


def _keep_kinds(config: Any, own: Range) -> None:
    """Have a configuration name the kinds of a stage's layers alone, as modelling code asks it."""
    found = {name: getattr(config, name, None) for name in _KINDS}
    lists = {name: [*kinds] for name, kinds in found.items() if isinstance(kinds, list)}
    for name, whole in lists.items():
        kinds = whole[own.first : own.last]
        if getattr(config, name) == kinds:
            continue  # another name of what was set
        held = config.attribute_map.get(name, name)
        if isinstance(getattr(type(config), held, None), property):
            # What it computes of a layer's number, a class of its own says.
            config.__class__ = type(type(config).__name__, (type(config),), {held: kinds})
        else:
            setattr(config, name, kinds)


def share_of(
    model_class: Any,
    config: Any,
    resolved: Resolved,
    links: StageLinks,
    stored: Mapping[str, tuple[int, ...]],
) -> StageShare:
    """A stage's part of a model; `stored`: the sides of a folder's tensors. Raises ModelError,
    naming what cannot be split.
    """
    model = outline(model_class, config)
    names = {module: name for name, module in model.named_modules()}
    lists = [
        module
        for module in model.base_model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == resolved.num_layers
    ]
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if not lists or not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
        said = "its layers, its embedding or its head are of another kind"
        raise ModelError(f"{resolved.model_type} cannot be split into stages yet: {said}")
    layers = names[lists[0]]
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    # Where they are one weight, whoever needs one of them has both, at no cost.
    needs = {names[embedding]: links.stage == 0, names[head]: links.is_last}
    dropped = tuple(
        name for name, needed in needs.items() if not (needed or (is_tied and any(needs.values())))
    )
    if dropped:
        config.tie_word_embeddings = False
    parts, own = StoredParts(model, stored), links.layers

    def is_unused(parameter: str) -> bool:
        if parameter.startswith(f"{layers}."):
            return not own.first <= int(parameter[len(layers) + 1 :].partition(".")[0]) < own.last
        return parameter.rpartition(".")[0] in dropped

    unused = frozenset(name for name, to in parts.parameters.items() if is_unused(to))
    return StageShare(links, layers, names[embedding], names[head], dropped, unused)

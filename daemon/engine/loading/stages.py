"""This stage's layers of a model: the others are never made, and their weights never read.

Layers keep their numbers among the model's modules, so that weights are found by their own names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from daemon.engine.layers.stages import StageEntry, StageHead, StageLinks
from daemon.engine.loading.shards import StoredParts, place_of
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError


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
        config.num_hidden_layers = self.links.layers.size
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[
                self.links.layers.first : self.links.layers.last
            ]
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
    with torch.device("meta"):
        model = model_class(config)
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

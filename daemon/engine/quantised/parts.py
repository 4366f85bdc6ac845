"""The stored tensors that are parts of a model's parameter, where several become one.

How a checkpoint's names and tensors become a model's is transformers' knowledge: what it does when
it loads a folder is asked here of names alone.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    rename_source_key,
)

_OF_AN_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_PARAMETERS = {"gate": ("gate_up_proj", 0), "up": ("gate_up_proj", 1), "down": ("down_proj", 0)}
"""The parameters of models whose checkpoints have none for a single expert, and of what a GGUF
file has of one: which parameter it is a part of, and where."""


class StackPart(NamedTuple):
    """Some rows of an expert, in a parameter [experts, rows, columns]."""

    expert: int
    below: int  # which of those that lie below each other


def stored_parts(model: Any, names: Collection[str]) -> dict[str, dict[StackPart, str]]:
    """By a parameter of `model`, the stored tensors among `names` that are its parts."""
    mapping = get_model_conversion_mapping(model)
    converters = [change for change in mapping if isinstance(change, WeightConverter)]
    renamings = [change for change in mapping if not isinstance(change, WeightConverter)]
    places = {
        pattern: below
        for converter in converters
        if _stacks(converter)
        for below, pattern in enumerate(converter.source_patterns)
    }
    state, prefix = model.state_dict(), model.base_model_prefix
    found = dict[str, dict[StackPart, str]]()
    for name in names:
        stack, _, place = name.rpartition(".")
        if place.isdecimal():  # a matrix of a stored stack, whose name is the parameter's
            target, _ = rename_source_key(stack, renamings, converters, prefix, state)
            found.setdefault(target, {})[StackPart(int(place), 0)] = name
            continue
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if pattern not in places:
            if own := _OF_AN_EXPERT.fullmatch(name):
                parameter, below = _PARAMETERS[own[3]]
                alone = f"{own[1]}.{own[3]}_proj"
                if alone in state:  # not gated
                    parameter, below = alone.rpartition(".")[2], 0
                found.setdefault(f"{own[1]}.{parameter}", {})[StackPart(int(own[2]), below)] = name
            continue
        *_, expert = (int(word) for word in name.split(".") if word.isdecimal())
        found.setdefault(target, {})[StackPart(expert, places[pattern])] = name
    return found


def laid_below(model: Any, names: Collection[str]) -> dict[str, list[str]]:
    """By a parameter of `model`, the stored tensors among `names` that lie below each other in it,
    in order.
    """
    mapping = get_model_conversion_mapping(model)
    converters = [
        change
        for change in mapping
        if isinstance(change, WeightConverter)
        and [(type(step), step.dim) for step in change.operations if hasattr(step, "dim")]
        == [(Concatenate, 0)]
        and len(change.operations) == 1
    ]
    order = {
        pattern: below
        for converter in converters
        for below, pattern in enumerate(converter.source_patterns)
    }
    renamings = [change for change in mapping if not isinstance(change, WeightConverter)]
    state, prefix = model.state_dict(), model.base_model_prefix
    found = dict[str, dict[int, str]]()
    for name in names:
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if pattern in order:
            found.setdefault(target, {})[order[pattern]] = name
    return {target: [parts[at] for at in sorted(parts)] for target, parts in found.items()}


def target_of(model: Any) -> Callable[[str], str]:
    """From the name of a stored tensor to that of the parameter of `model` that it is."""
    mapping = get_model_conversion_mapping(model)
    renamings = [change for change in mapping if not isinstance(change, WeightConverter)]
    state, prefix = model.state_dict(), model.base_model_prefix
    return lambda name: rename_source_key(name, renamings, [], prefix, state)[0]


def _stacks(converter: Any) -> bool:
    """Whether matrices are stacked by their number, and stacks laid below each other; no more."""
    steps = [(type(step), step.dim) for step in converter.operations if hasattr(step, "dim")]
    stacked, below = (MergeModulelist, 0), (Concatenate, 1)
    wanted = [stacked, below] if len(converter.source_patterns) > 1 else [stacked]
    return steps == wanted and len(steps) == len(converter.operations)

"""How a checkpoint's layers are quantised: schemes of numbers and scales, and their layers.

What a configuration says of layers is one thing, which of them are stored so another: see
`daemon.models.quantised_layers`.
"""

import re
from functools import cache
from typing import Literal

import msgspec

Numbers = Literal["int4", "int8", "fp8", "fp4", "mxfp4"]
Layout = Literal["awq", "gptq", "packed", "plain", "experts"]
"""Tensors of a layer: `qweight` in AWQ's order of nibbles, or in GPTQ's; `weight_packed`; a
`weight` of int8, FP8 or NVFP4 beside its scales; or `NAME_blocks` and `NAME_scales` of all
experts."""

KV_NOTE = "its scales for keys and values are not used: the cache's own format is configured"
_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed\w*|wte|word_embeddings)$")


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """How the weight [N, K] of a layer is stored."""

    layout: Layout
    numbers: Numbers
    group: int = 0  # columns that share a scale; 0: all of a row
    group_rows: int = 1  # rows that share it; 0: all of the weight
    symmetric: bool = True  # numbers lie around the middle of their range, or have zero points
    act_order: bool = False  # columns may be in another order than the model's
    lowered_zeros: bool = False  # zero points are stored less 1
    rounds_states: bool = False  # the quantiser meant states to be rounded too


class Target(msgspec.Struct, frozen=True):
    """A scheme and the layers that have it: names, `re:` and a pattern, or classes of torch."""

    layers: tuple[str, ...]
    scheme: Scheme


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """The quantisation of a checkpoint's layers."""

    method: str  # as `quant_method` names it
    targets: tuple[Target, ...]
    ignored: tuple[str, ...] = ()  # layers in plain numbers, named as in `Target`
    parts: bool = False  # a name in `ignored` also stands for what begins or ends with it
    notes: tuple[str, ...] = ()  # of what is said and has no effect here, a sentence each

    def scheme_of(self, layer: str, numbers: Numbers | None = None) -> Scheme | None:
        """The scheme of a layer, by its name in the checkpoint; None: it is in plain numbers.

        Names and patterns go before classes, and what comes first before what comes after; schemes
        of other `numbers` than a layer is stored in go last.
        """
        if self._is_ignored(layer):
            return None
        targets = sorted(self.targets, key=lambda target: target.scheme.numbers != numbers)
        for fits in (_is_matched, _is_class):
            for target in targets:
                if any(fits(layer, pattern) for pattern in target.layers):
                    return target.scheme
        return None

    @property
    def rounds_states(self) -> bool:
        """Whether some layer was meant to be used with states that are rounded too."""
        return any(target.scheme.rounds_states for target in self.targets)

    def _is_ignored(self, layer: str) -> bool:
        names, patterns = _sorted(self.ignored)
        words = layer.split(".") if self.parts else []
        wanted = {layer, _class(layer)}
        wanted |= {".".join(words[:end]) for end in range(1, len(words))}
        wanted |= {".".join(words[begin:]) for begin in range(1, len(words))}
        return not names.isdisjoint(wanted) or any(pattern.match(layer) for pattern in patterns)


def is_pattern(name: str) -> bool:
    """Whether some layers are named by a regular expression."""
    return name.startswith("re:")


@cache
def _sorted(names: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Names, and patterns."""
    patterns = tuple(re.compile(name.removeprefix("re:")) for name in names if is_pattern(name))
    return frozenset(name for name in names if not is_pattern(name)), patterns


def _is_matched(layer: str, name: str) -> bool:
    if is_pattern(name):
        return re.match(name.removeprefix("re:"), layer) is not None
    return layer == name


def _is_class(layer: str, name: str) -> bool:
    return name == _class(layer)


def _class(layer: str) -> str:
    """The class of a layer: its name tells embeddings, all others are linear."""
    return "Embedding" if _EMBEDDINGS.search(layer) else "Linear"

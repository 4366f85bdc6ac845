"""Every type that the installed transformers has a causal language model of, and its variants."""

from collections.abc import Iterator

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.zoo import axes
from tests.zoo.families import MIXED, own_variants
from tests.zoo.mixes import mixed
from tests.zoo.variant import Variant


def types() -> list[str]:
    """The types' names, sorted."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def variants_of(model_type: str) -> Iterator[Variant]:
    """The variants of a type: those that follow from its fields, and its own."""
    singles = [*axes.variants(model_type), *own_variants(model_type)]
    yield from singles
    if model_type in MIXED:
        yield from mixed(singles)

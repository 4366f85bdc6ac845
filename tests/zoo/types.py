"""Every type that the installed transformers has a causal language model of, and its variants."""

from collections.abc import Iterator

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.zoo import axes
from tests.zoo.variant import Variant


def types() -> list[str]:
    """The types' names, sorted."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def variants_of(model_type: str) -> Iterator[Variant]:
    """What follows from a type's fields, and what is its own."""
    yield from axes.variants(model_type)

"""Implementations of a product with weights in blocks, and the fastest for numbers of tokens."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import Enum

from daemon.engine.quantised.weight import QuantisedWeight

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 512)
"""Numbers of tokens that ways are chosen for; those between take the next, more the last."""

Key = tuple[str, int]
"""A format's name and K."""


class ProductWay(Enum):
    """How a product is computed."""

    FLOATS_SINGLY = "float, token by token"
    FLOATS_TOGETHER = "float, all tokens at once"
    ROUNDED_SINGLY = "rounded, token by token"
    ROUNDED_TOGETHER = "rounded, tokens side by side"
    BFLOAT16_BY_MATRICES = "bfloat16, by the processor's matrices"
    FLOAT32_PANEL = "unpacked to float32 for torch"
    BFLOAT16_PANEL = "unpacked to bfloat16 for torch"


PANELS = frozenset({ProductWay.FLOAT32_PANEL, ProductWay.BFLOAT16_PANEL})
ROUNDED = frozenset({ProductWay.ROUNDED_SINGLY, ProductWay.ROUNDED_TOGETHER})
"""Ways that round states to 8 bits."""
EXACT = frozenset({ProductWay.FLOATS_SINGLY, ProductWay.FLOATS_TOGETHER, ProductWay.FLOAT32_PANEL})
"""Ways whose results differ from each other's by the order of sums only."""


class ProductWays:
    """A way for every size, of each format and K."""

    def __init__(self, chosen: Mapping[Key, Sequence[ProductWay]]) -> None:
        self.chosen = chosen

    def alike(self, weight: QuantisedWeight, count: int, other: int) -> bool:
        """Whether a token gets the same numbers among `count` tokens as among `other`: to the bit,
        or but for the order of sums where nothing rounds states.

        Where states are rounded, numbers that differ in a last bit may round apart, and soon
        differ by as much as rounding changes.
        """
        way, two = self.of(weight, count), self.of(weight, other)
        if way is two and way not in PANELS:
            return True
        return {way, two} <= EXACT and self._is_exact(count) and self._is_exact(other)

    @property
    def exact(self) -> bool:
        """Whether nothing rounds states, however many tokens there are."""
        return all(way in EXACT for ways in self.chosen.values() for way in ways)

    def _is_exact(self, count: int) -> bool:
        """Whether nothing rounds states of T tokens."""
        return all(ways[_index(count)] in EXACT for ways in self.chosen.values())

    def of(self, weight: QuantisedWeight, count: int) -> ProductWay:
        """The way for T tokens. Raises KeyError for a weight that nothing was chosen for."""
        return self.chosen[key(weight)][_index(count)]


def _index(count: int) -> int:
    """The index of the ways for T tokens."""
    return min(bisect_left(SIZES, count), len(SIZES) - 1)


def key(weight: QuantisedWeight) -> Key:
    """The key that weights with the same ways share."""
    return weight.format.name, weight.columns


def always(weights: Sequence[QuantisedWeight], way: ProductWay) -> ProductWays:
    """The same way for all sizes."""
    return ProductWays({key(weight): (way,) * len(SIZES) for weight in weights})

"""Several changes at once: variants of a type drawn together."""

import random
from collections.abc import Iterator, Sequence

from tests.zoo.variant import Variant

NUM_MIXES = 4
_PICKED = 4


def mixed(singles: Sequence[Variant]) -> Iterator[Variant]:
    """Some mixtures of a type's variants; the same ones every time."""
    chance = random.Random(singles[0].model_type)
    for number in range(NUM_MIXES):
        picked = chance.sample(singles, min(_PICKED, len(singles)))
        args = {name: value for one in picked for name, value in one.args.items()}
        raw = {name: value for one in picked for name, value in one.raw.items()}
        yield Variant(
            singles[0].model_type,
            f"mix {number + 1}: {', '.join(one.name for one in picked)}",
            args,
            raw,
            sharded=number % 2 == 1,
        )

"""`python -m tests.zoo.conditioning TYPE/VARIANT ...`: how far float32 itself may lead.

Prints, for the position at which what is served is furthest from transformers' code in float64, how
far transformers' own float32 is there and at its furthest, and how far that float64 moves where
each weight is off by at most half of its last bit in float32: no computation in float32 can be
expected to be nearer than that.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from tests.zoo.build import build
from tests.zoo.oracle import Oracle, distances, exact_reference, serve
from tests.zoo.types import variants_of

DRAWS = 12
HALF_BIT = 2.0**-24
"""Half of the last bit of a float32, relative to the number."""


def moved(folder: Path, exact: list[torch.Tensor]) -> Iterator[list[np.ndarray]]:
    """How far each position of each text is from `exact` with weights that are off a little."""
    places = [(slot, at) for slot, text in enumerate(exact) for at in range(len(text))]
    for seed in range(DRAWS):
        drawn = torch.Generator().manual_seed(seed)

        def change(model: Any, drawn: torch.Generator = drawn) -> None:
            with torch.no_grad():
                for weight in model.parameters():
                    off = 2 * torch.rand(weight.shape, generator=drawn, dtype=weight.dtype) - 1
                    weight.mul_(1 + HALF_BIT * off)

        found = exact_reference(folder, change)
        far = distances([(slot, at, found[slot][at]) for slot, at in places], exact)
        yield np.split(far, np.cumsum([len(text) for text in exact])[:-1])


def main() -> int:
    """Print a line for each variant."""
    for label in sys.argv[1:]:
        model_type, _, name = label.partition("/")
        variant = next(one for one in variants_of(model_type) if one.name == name)
        with TemporaryDirectory() as made:
            folder = Path(made) / "m"
            build(variant, folder)
            oracle, rows = Oracle(folder, "float32"), serve(folder, "float32").seen.rows
            ours, theirs = (
                distances(found, oracle.float64)
                for found in (rows, [(s, at, oracle.float32[s][at]) for s, at, _ in rows])
            )
            slot, at, _ = rows[worst := int(ours.argmax())]
            off = list(moved(folder, oracle.float64))
        here, all_of_it = (
            sorted(one[slot][at] for one in off),
            np.concatenate([*map(np.hstack, off)]),
        )
        print(
            f"{label}: text {slot}, position {at}: llmd {ours[worst]:.1e}, transformers "
            f"{theirs[worst]:.1e} (at its furthest {theirs.max():.1e}); weights off by half a bit "
            f"{here[0]:.1e} to {here[-1]:.1e}, median {here[DRAWS // 2]:.1e} (of all positions "
            f"{np.median(all_of_it):.1e}); medians of llmd {np.median(ours):.1e}, of transformers "
            f"{np.median(theirs):.1e}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

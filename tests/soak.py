"""How much is tried: little in `make test`, and with LLMD_SOAK=1, as `make soak` sets it, much."""

import os

SOAK = os.environ.get("LLMD_SOAK") == "1"


def tries(quick: int, soak: int) -> int:
    """How many examples, seeds or requests a test has."""
    return soak if SOAK else quick

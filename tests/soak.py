"""How much is tried: little in `make test`, and with LLMD_SOAK=1, as `make soak` sets it, much."""

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

SOAK = os.environ.get("LLMD_SOAK") == "1"


def tries(quick: int, soak: int) -> int:
    """How many examples, seeds or requests a test has."""
    return soak if SOAK else quick


def dealt(rows: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """All pairs of two lists of values, most of which are left to `make soak`.

    Quickly each row has one column and the columns take turns, so that every value is tried.
    """
    return [
        pytest.param(row, column, marks=[pytest.mark.soak] * (place % len(columns) != turn))
        for (place, row), (turn, column) in product(enumerate(rows), enumerate(columns))
    ]

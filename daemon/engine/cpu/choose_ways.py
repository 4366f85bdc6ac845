"""Chooses the fastest way for each kind of weight by measuring all of them here and now."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.matrix_dots import have_matrices
from daemon.engine.cpu.quantised import QuantisedProduct
from daemon.engine.cpu.team import Team
from daemon.engine.cpu.ways import (
    EXACT,
    PANELS,
    ROUNDED,
    SIZES,
    Key,
    ProductWay,
    ProductWays,
    always,
    key,
)
from daemon.engine.quantised.weight import QuantisedWeight

BUDGET_S = 1.0
"""What all measurements of a start may take, compiling aside."""

_SLICE_NUMBERS = 2**20
"""Numbers of the part of a weight that is measured."""

_MOST_ROUNDS = 7
_SINGLY = frozenset({ProductWay.FLOATS_SINGLY, ProductWay.ROUNDED_SINGLY})
_MOST_SINGLY, _FEWEST_PANEL, _FEWEST_MATRICES = 4, 8, 8
"""Tokens: more are not tried token by token, nor fewer by a panel."""


def choose(weights: Iterable[QuantisedWeight], team: Team, exact: bool) -> ProductWays:
    """The fastest way for each format, K and size among those of `weights`.

    `exact`: only of ways that do not round states.
    """
    largest: dict[Key, QuantisedWeight] = {}
    for weight in weights:
        known = largest.get(key(weight))
        if known is None or known.rows < weight.rows:
            largest[key(weight)] = weight
    budget_s = BUDGET_S / (len(SIZES) * max(len(largest), 1))
    chosen = {}
    with _one_thread(), torch.inference_mode():
        for one, weight in largest.items():
            rows = max(_SLICE_NUMBERS // weight.columns, 1)
            part = weight.pick(slice(0, rows))
            chosen[one] = [_fastest(part, team, size, exact, budget_s) for size in SIZES]
    return ProductWays(chosen)


def possible(weight: QuantisedWeight, size: int, exact: bool) -> list[ProductWay]:
    """The ways that are worth measuring for so many tokens."""
    rounds = reader(weight.format).rounds
    ways = []
    for way in ProductWay:
        if exact and way not in EXACT:
            continue
        if way in ROUNDED and not rounds:
            continue
        if way is ProductWay.ROUNDED_BY_MATRICES and (
            size < _FEWEST_MATRICES or not have_matrices()
        ):
            continue
        # Where states may be rounded, what rounds them is faster than what does not.
        if way in {ProductWay.FLOATS_SINGLY, ProductWay.FLOATS_TOGETHER} and rounds and not exact:
            continue
        if way is ProductWay.BFLOAT16_PANEL and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            continue
        if (way in _SINGLY and size > _MOST_SINGLY) or (way in PANELS and size < _FEWEST_PANEL):
            continue
        ways.append(way)
    return ways


def _fastest(
    weight: QuantisedWeight, team: Team, size: int, exact: bool, budget_s: float
) -> ProductWay:
    states = torch.randn(size, weight.columns)
    ways = possible(weight, size, exact)
    products = {way: QuantisedProduct([weight], None, team, always([weight], way)) for way in ways}
    for product in products.values():
        product(states)  # compiles
    best_s = dict.fromkeys(ways, float("inf"))
    end_s = time.perf_counter() + budget_s
    for _ in range(_MOST_ROUNDS):
        for way, product in products.items():
            begin_s = time.perf_counter()
            product(states)
            best_s[way] = min(best_s[way], time.perf_counter() - begin_s)
        if time.perf_counter() > end_s:
            break
    return min(ways, key=best_s.__getitem__)


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch and the kernels on the calling thread alone.

    All ways share their columns among threads alike, and a core that somebody else has for a while
    would decide what is waited for.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

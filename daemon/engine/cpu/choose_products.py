"""Chooses the fastest way for each kind of weight by measuring all of them here and now."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.matrix_dots import have_matrices
from daemon.engine.cpu.product_implementations import (
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
from daemon.engine.cpu.quantised import QuantisedProduct
from daemon.engine.cpu.step_buffers import MAX_TOKENS
from daemon.engine.cpu.team import Team
from daemon.engine.quantised.weight import QuantisedWeight

BUDGET_S = 1.0
"""Most time that all measurements of a start take, compiling aside."""

OUTSIDE_S = 1.5e-4
"""Time added to a product where torch computes a part of the step and no program does: threads are
woken for it and for its surroundings, by Python that memory has to bring back.
"""

_SLICE_NUMBERS = 2**20
"""Numbers of the part of a weight that is measured."""

_MOST_ROUNDS = 7
_SINGLY = frozenset({ProductWay.FLOATS_SINGLY, ProductWay.ROUNDED_SINGLY})
_MOST_SINGLY, _FEWEST_PANEL, _FEWEST_MATRICES = 4, 8, 8
"""Tokens: more are not tried token by token, nor fewer by a panel."""


Times = dict[ProductWay, float]
"""Seconds of a row of a weight, by way."""


def choose_products(
    weights: Iterable[QuantisedWeight], team: Team, exact: bool, in_calls: bool = False
) -> ProductWays:
    """The fastest way for each format, K and size among those of `weights`.

    `exact`: only ways that do not round states; `in_calls`: only ways that torch has no part in.
    """
    alike: dict[Key, list[QuantisedWeight]] = {}
    for weight in weights:
        alike.setdefault(key(weight), []).append(weight)
    budget_s = BUDGET_S / (len(SIZES) * max(len(alike), 1))
    num_threads = torch.get_num_threads()
    num_rows = {kind: sum(weight.rows for weight in some) for kind, some in alike.items()}
    outside_s = OUTSIDE_S * sum(map(len, alike.values()))
    chosen: dict[Key, list[ProductWay]] = {kind: [] for kind in alike}
    with _one_thread(), torch.inference_mode():
        for size in SIZES:
            times = {
                kind: _times(some, team, size, (exact, in_calls), budget_s, num_threads)
                for kind, some in alike.items()
            }
            more_s = outside_s if size <= MAX_TOKENS else 0.0
            for kind, way in fastest(times, num_rows, more_s).items():
                chosen[kind].append(way)
    return ProductWays(chosen)


def fastest(
    times: Mapping[Key, Times], num_rows: Mapping[Key, int], outside_s: float
) -> dict[Key, ProductWay]:
    """The way of each kind of weight with which a step is done first.

    A step that torch has a part in takes `outside_s` more; so a panel that is faster for one kind
    alone may be worth less than a program of all. `num_rows`: of all weights of a kind.
    """

    def best(kind: Key, ways: Iterable[ProductWay]) -> ProductWay:
        return min(ways, key=times[kind].__getitem__)

    def total_s(ways: Mapping[Key, ProductWay]) -> float:
        return sum(times[kind][way] * num_rows[kind] for kind, way in ways.items())

    free = {kind: best(kind, found) for kind, found in times.items()}
    if not PANELS & set(free.values()):
        return free
    called = {kind: best(kind, found.keys() - PANELS) for kind, found in times.items()}
    return called if total_s(called) < total_s(free) + outside_s else free


def possible(
    weight: QuantisedWeight, size: int, exact: bool, in_calls: bool = False
) -> list[ProductWay]:
    """The ways worth measuring for `size` tokens."""
    rounds, ways = reader(weight.format).rounds, []
    exact = exact or not weight.format.may_round
    for way in ProductWay:
        if (exact and way not in EXACT) or (in_calls and way in PANELS):
            continue
        if way in ROUNDED and not rounds:
            continue
        if way is ProductWay.BFLOAT16_BY_MATRICES and (
            size < _FEWEST_MATRICES or not have_matrices()
        ):
            continue
        # Where states may be rounded, ways that round them are faster than ways that do not.
        if way in {ProductWay.FLOATS_SINGLY, ProductWay.FLOATS_TOGETHER} and rounds and not exact:
            continue
        if way is ProductWay.BFLOAT16_PANEL and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            continue
        if (way in _SINGLY and size > _MOST_SINGLY) or (way in PANELS and size < _FEWEST_PANEL):
            continue
        ways.append(way)
    return ways


def _times(
    weights: Sequence[QuantisedWeight],
    team: Team,
    size: int,
    rules: tuple[bool, bool],
    budget_s: float,
    num_threads: int,
) -> Times:
    """Seconds per row of each way, for a number of tokens, weights of a kind and a number of
    threads; `rules`: whether only exact ways, and only those in calls.
    """
    weight = max(weights, key=lambda weight: weight.rows)
    weight = weight.pick(slice(0, max(_SLICE_NUMBERS // weight.columns, 1)))
    states = torch.randn(size, weight.columns)
    ways = possible(weight, size, *rules)
    products = {way: QuantisedProduct([weight], None, team, always([weight], way)) for way in ways}
    for product in products.values():
        product(states)  # compiles
    best_s = dict.fromkeys(ways, float("inf"))
    end_s = time.thread_time() + budget_s
    for _ in range(_MOST_ROUNDS):
        for way, product in products.items():
            begin_s = time.thread_time()
            product(states)
            best_s[way] = min(best_s[way], time.thread_time() - begin_s)
        if time.thread_time() > end_s:
            break
    return {way: took_s / (weight.rows * num_threads) for way, took_s in best_s.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch and the kernels on the calling thread alone, whose own time is measured then.

    All ways share their columns among threads alike, and a core that another process uses for a
    while would decide the wait.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

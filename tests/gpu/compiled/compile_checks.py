"""Compiles the kernels for GPUs that need not be there: does it build, does it fit their memory?"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

from benchmarks.gpu.report import Check
from tests.gpu.attempts import attempted

SHARED_LIMITS_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""The resources of one program on each generation (Ampere, its workstation cards, Ada, Hopper)."""

PARTS = ("attention", "op", "product", "block", "expert", "sampler", "move", "state")


Compiles = Callable[[tuple[int, ...]], Iterator[Check]]


def compile_checks(generations: tuple[int, ...] = tuple(SHARED_LIMITS_BYTES)) -> Iterator[Check]:
    """Each kernel's shared memory against what a program may have; what later calls compile."""
    for part in PARTS:
        yield from attempted(part, partial(_compiled, part, generations))


def checks_of(part: str) -> Compiles:
    """The function of a part."""
    name = f"{part}_compile_checks"
    found: Compiles = getattr(import_module(f"tests.gpu.compiled.{name}"), name)
    return found


def _compiled(part: str, generations: tuple[int, ...]) -> Iterator[Check]:
    yield from checks_of(part)(generations)

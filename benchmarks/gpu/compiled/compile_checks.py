"""Compiles the kernels for GPUs that need not be there: does it build, does it fit their memory?"""

from collections.abc import Iterator
from importlib import import_module

from benchmarks.gpu.attempts import attempted
from benchmarks.gpu.report import Check

SHARED_LIMITS_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""What one program may use on each generation (Ampere, its workstation cards, Ada, Hopper)."""

PARTS = ("attention", "op", "product", "sampler", "move")


def compile_checks(generations: tuple[int, ...] = tuple(SHARED_LIMITS_BYTES)) -> Iterator[Check]:
    """Each kernel's shared memory against what a program may have; what later calls compile."""
    for part in PARTS:
        name = f"{part}_compile_checks"

        def checks(name: str = name) -> Iterator[Check]:
            found = getattr(import_module(f"benchmarks.gpu.{name}"), name)
            yield from found(generations)

        yield from attempted(name, checks)

"""What launching a kernel for batches of many sizes would compile for a GPU that is not there."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.report import Check
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launches import Launches

TOKENS = (2, 1, 3, 16, 17, 8192)
"""Batches for which all must be compiled by the first of them."""


def launch_checks(
    name: str, launch: Callable[[int], None], generation: int, launches: Launches
) -> Iterator[Check]:
    """A kernel's shared memory, and how many are compiled anew after the first batch."""
    for tokens in TOKENS:
        launch(tokens)
    yield from compiled_checks(name, generation, launches.take())


def compiled_checks(name: str, generation: int, compiled: list[Any]) -> Iterator[Check]:
    """The shared memory of launched kernels, and how many the later launches compile anew."""
    used = max(kernel.metadata.shared for kernel in compiled)
    yield Check(f"sm_{generation} {name}", used, SHARED_LIMITS_BYTES[generation], "bytes")
    anew = len({kernel.hash for kernel in compiled}) - 1
    yield Check(f"sm_{generation} {name} anew", anew, 0, "kernels")

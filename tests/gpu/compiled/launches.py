"""The programs that launching kernels would compile for an absent GPU.

The functions that launch kernels run as they are, on tensors of the device `meta`, which have sizes
and no numbers. So what is compiled is what a worker would compile, with the same constants and
alignments, and whether one more launch compiles anew shows without a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass(slots=True)
class Launches:
    """Compiled kernels in the order of their launches; one that was there already stands again."""

    kernels: list[Any] = field(default_factory=list)

    def take(self) -> list[Any]:
        """The kernels since the last call."""
        taken, self.kernels = self.kernels, []
        return taken


class _Card:
    """The driver's answers that Triton needs before it compiles."""

    def __init__(self, generation: int) -> None:
        self._generation = generation

    def get_current_device(self) -> int:
        """A number for each generation, since kernels are kept by device."""
        return 1000 + self._generation

    def get_current_stream(self, device: int) -> int:
        """Nothing is launched on it."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """An NVIDIA GPU of this generation."""
        return GPUTarget("cuda", self._generation, 32)


@contextmanager
def compiled_for(generation: int) -> Iterator[Launches]:
    """In it, launches compile for a GPU of a generation (90: Hopper) and run nothing."""
    launches = Launches()
    run, active = JITFunction.run, driver._active

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        launches.kernels.append(compiled)
        return compiled

    JITFunction.run = compile_only
    driver.set_active(_Card(generation))
    try:
        yield launches
    finally:
        JITFunction.run = run
        driver.set_active(active)

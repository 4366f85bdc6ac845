"""The process that forks quick workers, shared by all tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from daemon.config.paths import default_cache
from daemon.engine.process import keep_compiled
from daemon.engine.worker.torch_stubs import leave_out
from tests.engine.interpreting import Interpreting
from tests.engine.interpreting import interpreting as interpreting_process
from tests.nursery.fixtures import quick, quick_python

if TYPE_CHECKING:
    from daemon.engine.cpu.team import Team

__all__ = ["quick", "quick_python"]

# As workers do. numba's own choice would not see a change in a file that kernels import from.
keep_compiled(default_cache())
leave_out()


@pytest.fixture(scope="session")
def team() -> "Team":
    """torch's threads, for calls of the CPU's kernels."""
    from daemon.engine.cpu.kernels import run_program
    from daemon.engine.cpu.team import Team

    return Team(run_program)


@pytest.fixture
def seeded() -> None:
    """The same random numbers in every run."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def interpreting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreting]:
    """The runner of programs whose Triton kernels are interpreted."""
    with interpreting_process(tmp_path_factory.mktemp("interpreting")) as process:
        yield process

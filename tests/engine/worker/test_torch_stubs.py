"""torch's compiler and spread tensors stay out of a worker, until more of them is asked for."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("quick_python")

PRELOADED = """
import sys, torch, transformers
"""


def run(program: str) -> None:
    """In a fork of a process that was preloaded as a worker is: it changes what is imported."""
    done = subprocess.run(
        [sys.executable, "-c", PRELOADED + program], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_imports_neither() -> None:
    run("""
from tests.nursery.engine import PRELOADED
from transformers.generation.continuous_batching import PagedAttentionCache
left_out = {"torch._dynamo.convert_frame", "torch.distributed.tensor", "torch._inductor"}
assert not left_out & {*sys.modules}, left_out & {*sys.modules}
assert "transformers" in PRELOADED and "sympy" not in PRELOADED
assert not transformers.utils.is_torch_distributed_available()
""")


@pytest.mark.parametrize("mark", ["disable", "disable(recursive=False)", "allow_in_graph"])
def test_a_marked_function_is_the_function(mark: str) -> None:
    run(f"""
@torch.compiler.{mark}
def twice(number):
    return 2 * number
assert twice(3) == 6 and twice.__name__ == "twice"
assert "torch._dynamo.convert_frame" not in sys.modules
""")


def test_whatever_else_is_asked_of_the_compiler_has_the_real_one() -> None:
    run("""
shell = torch._dynamo
assert not shell.config.verbose and shell.is_compiling() is False
assert sys.modules["torch._dynamo"] is torch._dynamo is not shell
compiled = torch.compile(lambda number: number + 1, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
""")


def test_twice_is_as_good_as_once_and_what_is_there_stays() -> None:
    run("""
from daemon.engine.worker.torch_stubs import leave_out
shell = torch._dynamo
leave_out()
assert torch._dynamo is shell
real = shell.convert_frame
leave_out()
assert torch._dynamo is not shell and torch._dynamo.convert_frame is real
""")

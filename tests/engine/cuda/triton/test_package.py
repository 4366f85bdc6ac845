"""The package where there is no Triton, and the GPU commands where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.interpreting import Interpreting
from tests.hangs import HANG_S

ROOT = Path(__file__).resolve().parents[4]

WITHOUT_TRITON = """
import sys
for name in list(sys.modules):
    if name.startswith("daemon."):
        del sys.modules[name]
sys.modules["triton"] = None
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
assert callable(reference.write_kv) and not hasattr(kernels, "nothing")
try:
    kernels.write_kv
except ImportError:
    print("needs triton")
"""

LAZY = """
import sys
from daemon.engine.cuda import triton as kernels
assert "triton" not in sys.modules
assert kernels.paged_decode_attention.__name__ == "paged_decode_attention"
assert "triton" in sys.modules
print("lazy")
"""


NO_GPU = """
import contextlib, importlib, io, sys
with contextlib.redirect_stderr(io.StringIO()) as said:
    status = importlib.import_module(sys.argv[1]).main([])
print(status, "no CUDA device" in said.getvalue())
"""


def test_without_triton_only_its_use_fails(interpreting: Interpreting) -> None:
    assert interpreting.output(WITHOUT_TRITON) == "needs triton"


def test_triton_is_imported_only_when_used() -> None:
    """In a process of its own, which has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-c", LAZY], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout.strip() == "lazy", done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["tests.gpu.__main__", "benchmarks.gpu_bench"])
def test_gpu_commands_say_that_there_is_no_gpu(interpreting: Interpreting, module: str) -> None:
    assert interpreting.output(NO_GPU, module) == "2 True"

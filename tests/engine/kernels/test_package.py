"""The package where there is no Triton, and the GPU commands where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]

WITHOUT_TRITON = """
import sys
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


def output(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("code", "said"), [(WITHOUT_TRITON, "needs triton"), (LAZY, "lazy")])
def test_triton_is_imported_only_when_used(code: str, said: str) -> None:
    done = output("-c", code)
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["tests.gpu", "benchmarks.gpu_bench"])
def test_gpu_commands_say_that_there_is_no_gpu(module: str) -> None:
    done = output("-m", module)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert not done.stdout

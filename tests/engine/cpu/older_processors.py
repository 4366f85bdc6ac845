"""Tests that run again, compiled for processors that are older than this one."""

import os
import subprocess
import sys

OLDER = {
    "haswell": "+avx,+avx2,+fma,+f16c,+sse2,+sse4.1,+sse4.2,+ssse3,+popcnt,+64bit",
    "x86-64": "+sse2,+64bit",
}
"""LLVM's names of processors, and their features."""


def pass_on(processor: str, file: str, left_out: str = "") -> None:
    """Run a file's quick tests, compiled for one of `OLDER`; or all but those whose names have a
    word of `left_out`. Raises AssertionError if one fails.
    """
    features = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": OLDER[processor]}
    words = " and ".join(f"not {word}" for word in left_out.split())
    chosen = ["-m", "soak or not soak", "-k", words] if words else ["-m", "not soak"]
    command = [sys.executable, "-m", "pytest", "-q", *chosen, file]
    done = subprocess.run(
        command, env={**os.environ, **features}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout

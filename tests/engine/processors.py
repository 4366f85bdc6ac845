"""Tests that run again, compiled for processors that are older than this one."""

import os
import subprocess
import sys

OLDER = {
    "haswell": "+avx,+avx2,+fma,+f16c,+sse2,+sse4.1,+sse4.2,+ssse3,+popcnt,+64bit",
    "x86-64": "+sse2,+64bit",
}
"""What LLVM calls them, and what they have."""


def pass_on(processor: str, file: str) -> None:
    """Run a file's quick tests, compiled for one of `OLDER`. Raises AssertionError if one fails."""
    features = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": OLDER[processor]}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not soak", file]
    done = subprocess.run(
        command, env={**os.environ, **features}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout

"""Programmatic dependent launch (from Hopper on): a kernel begins before the last has ended.

A kernel that calls `gdc_launch_dependents` (triton.language.extra.cuda) allows the next one to be
launched from then on. One that is launched with `launch_pdl` comes so early, and must call
`gdc_wait` before it reads what kernels before it wrote, and before it writes anything. The first is
a hint that breaks nothing; without the second a kernel waits for all before it, as ever.
"""

from functools import cache

import triton
from triton.runtime import driver

_HOPPER = 90


def early() -> bool:
    """Whether kernels can allow others to come early, and come early, on the current device."""
    if triton.knobs.runtime.interpret:
        return False
    return _early(driver.active.get_current_device())


@cache
def _early(device: int) -> bool:
    target = driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= _HOPPER

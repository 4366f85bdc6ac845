"""Garbage collection of a process that answers at once: seldom, and of few objects at a time."""

import gc

YOUNG = 3_000
"""New objects after which the youngest are looked at. With Python's 700 more than one arrival in a
hundred waited for that."""

_SECOND, _THIRD = 3, 100  # passes of a generation after which the next older one is looked at


def settle() -> None:
    """Collect what a start has left, look at nothing of it again, and at new objects seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, _SECOND, _THIRD)

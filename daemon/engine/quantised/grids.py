"""The tables of GGUF's IQ formats: an index of some bits stands for a run of numbers.

They are llama.cpp's, as the `gguf` package has them.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from daemon.models.formats import WeightFormat

TERNARY_STEPS = 8
"""Numbers of IQ1's table are these many eighths: all have an eighth added or taken away."""


@cache
def grid(name: str) -> npt.NDArray[np.int8]:
    """int8 [indices, run] of a format with a table: sizes of numbers; of IQ1 eighths of numbers."""
    from gguf import quants  # what reads no such file does without

    kind = getattr(quants, name)
    kind.init_grid()
    numbers = kind.grid[0, 0] * (TERNARY_STEPS if name.startswith("IQ1") else 1)
    return np.ascontiguousarray(numbers.astype(np.int8))


def has_grid(form: WeightFormat) -> bool:
    """Whether a format's numbers are those of a table of runs."""
    return form.name.startswith(("IQ1", "IQ2", "IQ3"))

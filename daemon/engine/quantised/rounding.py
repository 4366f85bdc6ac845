"""What is left of states in products that round them, in plain torch: what a trial compares with.

Products with integers round states to 8 bits, in runs of 32; all others multiply in bfloat16.
"""

import torch

from daemon.models.formats import WeightFormat

RUN = 32
_MOST = 127.0
_LEAST = 2.0**-100
"""Runs of smaller numbers are rounded to nothing."""


def rounded_states(form: WeightFormat, states: torch.Tensor) -> torch.Tensor:
    """`states` [..., K] as products with this format may take them; K in whole runs."""
    return _to_bytes(states) if form.integers else states.bfloat16().to(states.dtype)


def _to_bytes(states: torch.Tensor) -> torch.Tensor:
    """Each number as the nearest of 255 whole multiples of the 127th part of its run's largest."""
    runs = states.float().unflatten(-1, (-1, RUN))
    most = runs.abs().amax(-1, keepdim=True)
    scaled = (runs * (_MOST / most)).round() * (most / _MOST)
    return torch.where(most < _LEAST, 0.0, scaled).flatten(-2).to(states.dtype)

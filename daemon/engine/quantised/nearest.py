"""From numbers to blocks of `int4/g`, `int8/g` and `fp8/g`, each number to the nearest one.

Integers of 8 bits count from a group's smallest number in steps of which its largest is the last:
what is lost is half a step at most. Those of 4 bits have the range with a small squared error.
FP8's largest number, 448, stands for the largest size in a group.
"""

import torch

from daemon.engine.quantised.repack import blocks_of
from daemon.models.formats import WeightFormat

_STEPS_4, _STEPS_8 = 15, 255
_LARGEST_FP8 = 448.0
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Scales and zeros [N, groups], and the numbers' codes [N, groups, len]."""


def nearest_blocks(form: WeightFormat, rows: torch.Tensor) -> torch.Tensor:
    """uint8 [N, bytes of a row]: the blocks nearest to `rows` float32 [N, K], in whole groups."""
    groups = rows.unflatten(1, (-1, form.block_len))
    kind = form.name.partition("/")[0]
    scales, zeros, codes = _BLOCKS[kind](groups)
    numbers = codes.flatten(1)
    return blocks_of(form, lambda first, last: numbers[first:last], scales, zeros)


def _fitted_integers(groups: torch.Tensor) -> _Parts:
    from daemon.engine.quantised.fitting import fitted  # numba, which other kinds do without

    found = fitted(groups.flatten(0, 1).numpy(), _STEPS_4)
    scales, low = (torch.from_numpy(array).view(groups.shape[:2]) for array in found)
    return _integers(groups, _usable(scales), low, _STEPS_4)


def _all_integers(groups: torch.Tensor) -> _Parts:
    low, high = groups.aminmax(dim=2)
    return _integers(groups, _usable((high - low) / _STEPS_8), low, _STEPS_8)


def _integers(groups: torch.Tensor, scales: torch.Tensor, low: torch.Tensor, steps: int) -> _Parts:
    codes = ((groups - low.unsqueeze(2)) / scales.unsqueeze(2)).round_().clamp_(0, steps)
    return scales, -low / scales, codes.to(torch.uint8)


def _floats(groups: torch.Tensor) -> _Parts:
    scales = _usable(groups.abs().amax(2) / _LARGEST_FP8)
    codes = (groups / scales.unsqueeze(2)).to(torch.float8_e4m3fn).view(torch.uint8)
    return scales, torch.zeros_like(scales), codes


def _usable(scales: torch.Tensor) -> torch.Tensor:
    """1 where a group's numbers are all alike: the zero alone says them then."""
    return torch.where(scales < _SMALLEST_SCALE, 1.0, scales)


_BLOCKS = {"int4": _fitted_integers, "int8": _all_integers, "fp8": _floats}

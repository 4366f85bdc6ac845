"""From numbers to blocks of `int4/g`, `int8/g` and `fp8/g`, each number to the nearest one.

Integers count from a group's smallest number in steps of which its largest is the last: what is
lost is half a step at most. FP8's largest number, 448, stands for the largest size in a group.
"""

import torch

from daemon.engine.quantised.repack import blocks_of
from daemon.models.formats import WeightFormat

_STEPS = {"int4": 15, "int8": 255}
_LARGEST_FP8 = 448.0
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def nearest_blocks(form: WeightFormat, rows: torch.Tensor) -> torch.Tensor:
    """uint8 [N, bytes of a row]: the blocks nearest to `rows` float32 [N, K], in whole groups."""
    groups = rows.unflatten(1, (-1, form.block_len))
    kind = form.name.partition("/")[0]
    scales, zeros, codes = _floats(groups) if kind == "fp8" else _integers(groups, _STEPS[kind])
    numbers = codes.flatten(1)
    return blocks_of(form, lambda first, last: numbers[first:last], scales, zeros)


def _integers(groups: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = groups.aminmax(dim=2)
    scales = _usable((high - low) / steps)
    codes = ((groups - low.unsqueeze(2)) / scales.unsqueeze(2)).round_().clamp_(0, steps)
    return scales, -low / scales, codes.to(torch.uint8)


def _floats(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = _usable(groups.abs().amax(2) / _LARGEST_FP8)
    codes = (groups / scales.unsqueeze(2)).to(torch.float8_e4m3fn).view(torch.uint8)
    return scales, torch.zeros_like(scales), codes


def _usable(scales: torch.Tensor) -> torch.Tensor:
    """1 where a group's numbers are all alike: the zero alone says them then."""
    return torch.where(scales < _SMALLEST_SCALE, 1.0, scales)

"""From blocks of GGUF's IQ1, IQ2, IQ3 and ternary formats to numbers, in plain torch.

As `daemon.engine.quantised.unpack`; `grids` has the tables.
"""

from collections.abc import Callable
from functools import cache

import torch

from daemon.engine.quantised.grids import TERNARY_STEPS, grid


@cache
def _table(name: str) -> torch.Tensor:
    """float32 [indices, run]."""
    numbers = torch.from_numpy(grid(name)).float()
    return numbers / TERNARY_STEPS if name.startswith("IQ1") else numbers


def _bytes(blocks: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """int32 [n, bytes]."""
    return blocks[:, first:last].int()


def _words(blocks: torch.Tensor, first: int, count: int, kind: torch.dtype) -> torch.Tensor:
    """int64 [n, count] of whole numbers without a sign."""
    size_bytes = kind.itemsize
    words = blocks[:, first : first + size_bytes * count].contiguous().view(kind).long()
    return words & ((1 << 8 * size_bytes) - 1)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """float32 [n, 1] of a float16 in two bytes."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _fields(numbers: torch.Tensor, count: int, width: int, step: int = 0) -> torch.Tensor:
    """[n, m * count]: of each of [n, m] some fields of `width` bits, the lowest first."""
    shifts = torch.arange(count, device=numbers.device) * (step or width)
    return ((numbers.unsqueeze(2) >> shifts) & ((1 << width) - 1)).flatten(1)


def _signs(bits: torch.Tensor) -> torch.Tensor:
    """float32 [n, 8 * bytes]: -1 for a bit that is set, else 1."""
    return 1.0 - 2.0 * _fields(bits, 8, 1).float()


def _even_signs(sevens: torch.Tensor) -> torch.Tensor:
    """float32 [n, 8 * m] of fields of seven bits; the eighth sign makes their count even."""
    odd = sevens
    for shift in (4, 2, 1):
        odd = odd ^ (odd >> shift)
    return _signs(sevens | ((odd & 1) << 7))


def _numbers(scales: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """float32 [n, 256]: scales [n, groups], each times as many of the numbers [n, 256]."""
    groups = numbers.view(len(scales), scales.shape[1], -1)
    return (scales.unsqueeze(2) * groups).flatten(1)


def _runs(name: str, indices: torch.Tensor) -> torch.Tensor:
    """float32 [n, 256] of a table's runs."""
    return _table(name).to(indices.device)[indices.long()].flatten(1)


def _iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    pairs = blocks[:, 2:].reshape(len(blocks), 8, 8)
    indices = pairs[:, :, :4].flatten(1)
    packed = _words(pairs[:, :, 4:].flatten(1), 0, 8, torch.int32)
    scales = _half(blocks, 0) * (0.5 + (packed >> 28).float()) * 0.25
    return _numbers(scales, _runs("IQ2_XXS", indices) * _even_signs(_fields(packed, 4, 7)))


def _iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    pairs = _words(blocks, 2, 32, torch.int16)
    scales = _half(blocks, 0) * (0.5 + _fields(_bytes(blocks, 66, 74), 2, 4).float()) * 0.25
    return _numbers(scales, _runs("IQ2_XS", pairs & 511) * _even_signs(pairs >> 9))


def _iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(_bytes(blocks, 66, 74), 4, 2)
    indices = _bytes(blocks, 2, 34) | (high << 8)
    scales = _half(blocks, 0) * (0.5 + _fields(_bytes(blocks, 74, 82), 2, 4).float()) * 0.25
    return _numbers(scales, _runs("IQ2_S", indices) * _signs(_bytes(blocks, 34, 66)))


def _iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    packed = _words(blocks, 66, 8, torch.int32)
    scales = _half(blocks, 0) * (0.5 + (packed >> 28).float()) * 0.5
    numbers = _runs("IQ3_XXS", _bytes(blocks, 2, 66))
    return _numbers(scales, numbers * _even_signs(_fields(packed, 4, 7)))


def _iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(_bytes(blocks, 66, 74), 8, 1)
    indices = _bytes(blocks, 2, 66) | (high << 8)
    scales = _half(blocks, 0) * (1.0 + 2.0 * _fields(_bytes(blocks, 106, 110), 2, 4).float())
    return _numbers(scales, _runs("IQ3_S", indices) * _signs(_bytes(blocks, 74, 106)))


def _shifted(numbers: torch.Tensor, less: torch.Tensor) -> torch.Tensor:
    """Numbers [n, 256] and an eighth, or less an eighth where a run's bit [n, runs] is set."""
    eighths = (1.0 - 2.0 * less.float()) / TERNARY_STEPS
    runs = numbers.view(len(numbers), less.shape[1], -1)
    return (runs + eighths.unsqueeze(2)).flatten(1)


def _iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    words = _words(blocks, 34, 8, torch.int16)
    indices = _bytes(blocks, 2, 34) | (_fields(words, 4, 3) << 8)
    scales = _half(blocks, 0) * (2.0 * ((words >> 12) & 7).float() + 1.0)
    return _numbers(scales, _shifted(_runs("IQ1_S", indices), words >> 15))


def _iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    nibbles, words = _fields(_bytes(blocks, 32, 48), 2, 4), _words(blocks, 48, 4, torch.int16)
    indices = _bytes(blocks, 0, 32) | ((nibbles & 7) << 8)
    places = torch.arange(4, device=blocks.device) * 4
    whole = ((words >> 12) << places).sum(1, keepdim=True).to(torch.int16)
    scales = whole.view(torch.float16).float() * (2.0 * _fields(words, 4, 3).float() + 1.0)
    return _numbers(scales, _shifted(_runs("IQ1_M", indices), nibbles >> 3))


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    found = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = 3 ** torch.arange(count, device=blocks.device, dtype=torch.int32)
        product = _bytes(blocks, first, last).unsqueeze(1) * powers[:, None] & 255
        found.append(((product * 3) >> 8).flatten(1))
    return _half(blocks, 52) * (torch.cat(found, 1) - 1).float()


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    halves = _bytes(blocks, 0, 64).view(-1, 2, 1, 32)
    shifts = torch.arange(4, device=blocks.device) * 2
    return _half(blocks, 64) * (((halves >> shifts[:, None]) & 3).flatten(1) - 1).float()


GRIDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}

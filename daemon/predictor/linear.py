"""Linear layers of the sentence encoder: float32, or integers of 8 bits (ALISE's encoder is small).

Integers are quantised by output channel for weights and by token for activations, so that a text's
vector does not depend on the texts beside it. Their products are exact sums of 32 bits.
"""

import time
from typing import Protocol

import torch

_LARGEST = 127.0  # of the symmetric integers of 8 bits
_TRIED_TOKENS, _TRIED_WIDTHS, _TRIES = 32, (384, 1536), 5


class Linear(Protocol):
    """A linear layer: [T, inputs] in float32 to [T, outputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """`weight` [outputs, inputs] and `bias` [outputs], both float32."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The products, with the bias."""


class Float32Linear:
    """The layer as it is stored."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, inputs] to [T, outputs]."""
        return torch.nn.functional.linear(rows, self._weight, self._bias)


class Int8Linear:
    """The layer in a fourth of the bytes, multiplied as integers."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._scale = _scale(weight)[:, 0]
        self._weight = (weight / self._scale[:, None]).round_().to(torch.int8).t().contiguous()
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, inputs] to [T, outputs]; each row has a scale of its own."""
        scale = _scale(rows)
        sums = torch._int_mm((rows / scale).round_().to(torch.int8), self._weight)
        return torch.addcmul(self._bias, sums.to(torch.float32).mul_(scale), self._scale)


def quicker() -> type[Linear]:
    """The kind that this processor multiplies in less time of the thread: integers where it has
    instructions for them. Takes milliseconds.
    """
    inputs, outputs = _TRIED_WIDTHS
    weight, bias = torch.linspace(-1.0, 1.0, inputs).expand(outputs, inputs), torch.zeros(outputs)
    rows = torch.linspace(-1.0, 1.0, inputs).expand(_TRIED_TOKENS, inputs).contiguous()
    kinds: tuple[type[Linear], ...] = (Int8Linear, Float32Linear)
    with torch.inference_mode():
        times_s = [_least_s(kind(weight.contiguous(), bias), rows) for kind in kinds]
    return kinds[times_s.index(min(times_s))]


def _least_s(linear: Linear, rows: torch.Tensor) -> float:
    times_s = []
    for _ in range(_TRIES):
        began_s = time.thread_time()
        linear(rows)
        times_s.append(time.thread_time() - began_s)
    return min(times_s)


def _scale(rows: torch.Tensor) -> torch.Tensor:
    """[R, 1]: what 1 in integers of each row is worth."""
    return rows.abs().amax(1, keepdim=True).mul_(1.0 / _LARGEST).clamp_(min=1e-12)

"""Predictors of output length that need no prompt text; each declares its error in a sentence."""

import math
from collections import defaultdict
from typing import Protocol


class PredictorError(ValueError):
    """No such predictor; the message lists those there are."""


class LengthPredictor(Protocol):
    """Says how many output tokens a request will have."""

    @property
    def declared(self) -> str:
        """Its name and its error, for every report."""

    def predict(self, num_prompt_tokens: int, truth: int, chance: float) -> int:
        """Predicted output tokens (>= 1). Only a simulation knows `truth`; `chance` is a draw from
        the standard normal distribution.
        """

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Learn from a finished request."""


class Oracle:
    """Knows the answer; the bound that no predictor passes."""

    declared = "oracle (no error)"

    def predict(self, num_prompt_tokens: int, truth: int, chance: float) -> int:
        """The truth."""
        return truth

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """There is nothing to learn."""


class Noisy:
    """The truth with lognormal error: truth * exp(sigma * z)."""

    def __init__(self, sigma: float) -> None:
        if not 0.0 <= sigma < math.inf:
            raise PredictorError(f"noisy:SIGMA needs a number from 0 on, got {sigma}")
        self._sigma = sigma
        self.declared = f"noisy:{sigma:g} (truth * lognormal error, sigma {sigma:g})"

    def predict(self, num_prompt_tokens: int, truth: int, chance: float) -> int:
        """The truth, times the error that `chance` draws."""
        return max(1, round(truth * math.exp(self._sigma * chance)))

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """There is nothing to learn."""


class ConditionalMean:
    """Aladdin section 4: the mean output of finished requests whose prompts were about as long.

    Prompts fall into classes by powers of two; a class counts once it has `LEAST` requests, before
    that the mean of all does, and before anything finished, `FIRST` tokens.
    """

    LEAST = 8
    FIRST = 256
    declared = (
        "mean (of finished requests with prompts of the same power of two; error not bounded)"
    )

    def __init__(self) -> None:
        self._sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])  # count, tokens
        self._all = [0, 0]

    def predict(self, num_prompt_tokens: int, truth: int, chance: float) -> int:
        """The class's mean so far."""
        count, total = self._sums[num_prompt_tokens.bit_length()]
        if count < self.LEAST:
            count, total = self._all
        return max(1, round(total / count)) if count else self.FIRST

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Count it in its class and among all."""
        for sums in (self._sums[num_prompt_tokens.bit_length()], self._all):
            sums[0] += 1
            sums[1] += num_output_tokens


def length_predictor(name: str) -> LengthPredictor | None:
    """The predictor of a flag's text; None for `none`. Raises PredictorError."""
    kind, _, value = name.partition(":")
    if kind == "noisy":
        try:
            return Noisy(float(value))
        except ValueError:
            raise PredictorError(f"noisy:SIGMA needs a number from 0 on, got {value!r}") from None
    makers: dict[str, type[Oracle | ConditionalMean]] = {
        "oracle": Oracle,
        "mean": ConditionalMean,
    }
    if value or kind not in {*makers, "none"}:
        raise PredictorError(f"no predictor {name!r}: choose none, mean, oracle or noisy:SIGMA")
    return makers[kind]() if kind in makers else None

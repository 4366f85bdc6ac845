"""From a profile to the time of a step."""

from typing import Protocol

from daemon.cost.profile import Operators, PhaseFit
from daemon.cost.work import StepWork

_DENSE_TOKENS = 8192
_DENSE_SAMPLES = 1024


class StepCost(Protocol):
    """A model of step times."""

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step (of one stage, in a pipeline)."""


class PhaseCost:
    """A `PhaseFit`, applied."""

    def __init__(self, fit: PhaseFit) -> None:
        self._fit = fit

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        fit = self._fit
        total_s = 0.0
        if work.chunks:
            base, linear, square = fit.prefill_s
            tokens, pairs = work.prompts()
            total_s = linear * tokens + square * pairs
            if not work.num_decodes:
                return base + total_s
        large = work.num_decodes >= fit.large_batch
        base, context, row = fit.large_decode_s if large else fit.decode_s
        return total_s + base + context * work.decode_context + row * work.num_decodes


class OperatorCost:
    """`Operators`, applied; curves over tokens are laid out densely once."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._by_samples = [operators.sampled_s(count) for count in range(_DENSE_SAMPLES + 1)]
        self._by_tokens = [self._tokens_s(count) for count in range(_DENSE_TOKENS + 1)]

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        operators = self._operators
        num_decodes, chunks = work.num_decodes, work.chunks
        num_tokens = num_decodes
        total_s = operators.row_s * (num_decodes + len(chunks))
        for count, before in chunks:
            num_tokens += count
            total_s += operators.prefill_s(count, before)
        if num_decodes:
            total_s += operators.decode_s(num_decodes, work.decode_context / num_decodes)
        if num_tokens <= _DENSE_TOKENS:
            total_s += self._by_tokens[num_tokens]
        else:
            total_s += self._tokens_s(num_tokens)
        if work.num_samples <= _DENSE_SAMPLES:
            return total_s + self._by_samples[work.num_samples]
        return total_s + operators.sampled_s(work.num_samples)

    def _tokens_s(self, count: int) -> float:
        operators = self._operators
        return operators.overhead_s + operators.tokens_s(count) + operators.communication_s(count)


def step_cost(step: PhaseFit | Operators) -> StepCost:
    """The cost of steps under a profile's fit."""
    return PhaseCost(step) if isinstance(step, PhaseFit) else OperatorCost(step)

"""From a profile to the time of a step."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from daemon.cost.profile import OperatorCurve, Operators, OperatorsAlone, PhaseFit, Profile
from daemon.cost.work import StepWork


class StepPart(NamedTuple):
    """One operator, or those of one kind, in one step."""

    name: str
    size: int  # of its input, in what its time depends on: tokens, rows, or pairs of tokens
    time_s: float


class StepCost(Protocol):
    """A model of step times."""

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step (of one stage, in a pipeline)."""

    def decodes_s(self, num_decodes: int) -> Callable[[int], float]:
        """The same of steps of so many decodes, all sampled, by the tokens they attend to."""

    def parts(self, work: StepWork) -> Iterator[StepPart]:
        """The operators of one step: their times add up to its own."""


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
        base, context, row = self._decode_terms(work.num_decodes)
        return total_s + base + context * work.decode_context + row * work.num_decodes

    def decodes_s(self, num_decodes: int) -> Callable[[int], float]:
        """The same of steps of so many decodes, by the tokens they attend to."""
        base, each, row = self._decode_terms(num_decodes)
        rows_s = row * num_decodes
        return lambda context: base + each * context + rows_s

    def _decode_terms(self, num_decodes: int) -> tuple[float, float, float]:
        large = num_decodes >= self._fit.large_batch
        return self._fit.large_decode_s if large else self._fit.decode_s

    def parts(self, work: StepWork) -> Iterator[StepPart]:
        """Prompts and decodes: a fit of two phases knows no finer ones."""
        tokens, pairs = work.prompts()
        _, linear, square = self._fit.prefill_s
        whole_s = self.step_s(work)
        prompts_s = linear * tokens + square * pairs if work.num_decodes else whole_s
        if work.chunks:
            yield StepPart("prompts", tokens, prompts_s)
        if work.num_decodes:
            yield StepPart("decodes", work.num_decodes, whole_s - prompts_s)


class OperatorCost:
    """`Operators`, applied; what depends on one count is computed once for each."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._by_samples: dict[int, float] = {}
        self._by_tokens: dict[int, float] = {}
        self._by_decodes: dict[int, Callable[[int], float]] = {}

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        operators = self._operators
        num_decodes, chunks = work.num_decodes, work.chunks
        if not chunks and work.num_samples == num_decodes:
            return self.decodes_s(num_decodes)(work.decode_context)
        num_tokens = num_decodes
        total_s = operators.row_s * (num_decodes + len(chunks))
        for count, before in chunks:
            num_tokens += count
            total_s += operators.prefill_s(count, before)
        if num_decodes:
            total_s += operators.decode_s(num_decodes, work.decode_context / num_decodes)
        return total_s + self._tokens_s(num_tokens) + self._sampled_s(work.num_samples)

    def decodes_s(self, num_decodes: int) -> Callable[[int], float]:
        """The same of steps of so many decodes, all sampled, by the tokens they attend to."""
        found = self._by_decodes.get(num_decodes)
        if found is None:
            found = self._by_decodes[num_decodes] = self._of_decodes(num_decodes)
        return found

    def _of_decodes(self, num_decodes: int) -> Callable[[int], float]:
        rows_s = self._operators.row_s * num_decodes
        tokens_s, sampled_s = self._tokens_s(num_decodes), self._sampled_s(num_decodes)
        if not num_decodes:
            return lambda _: rows_s + tokens_s + sampled_s
        attention_s = self._operators.decode_s.across(num_decodes)
        return lambda context: rows_s + attention_s(context / num_decodes) + tokens_s + sampled_s

    def parts(self, work: StepWork) -> Iterator[StepPart]:
        """Each term of `Operators` that has a time here."""
        operators, num_tokens = self._operators, work.num_tokens
        num_rows = work.num_decodes + len(work.chunks)
        found = [
            StepPart("token-level", num_tokens, operators.tokens_s(num_tokens)),
            *(
                StepPart(
                    "prefill attention",
                    count * (count + 2 * before) // 2,
                    operators.prefill_s(count, before),
                )
                for count, before in work.chunks
            ),
            StepPart("sampling", work.num_samples, operators.sampled_s(work.num_samples)),
            StepPart("communication", num_tokens, operators.communication_s(num_tokens)),
            StepPart("rows", num_rows, operators.row_s * num_rows),
            StepPart("overhead", 1, operators.overhead_s),
        ]
        if work.num_decodes:
            mean_context = work.decode_context / work.num_decodes
            time_s = operators.decode_s(work.num_decodes, mean_context)
            found.append(StepPart("decode attention", work.decode_context, time_s))
        return (part for part in found if part.time_s)

    def _tokens_s(self, count: int) -> float:
        found = self._by_tokens.get(count)
        if found is None:
            operators = self._operators
            found = operators.overhead_s + operators.tokens_s(count)
            found = self._by_tokens[count] = found + operators.communication_s(count)
        return found

    def _sampled_s(self, count: int) -> float:
        found = self._by_samples.get(count)
        if found is None:
            found = self._by_samples[count] = self._operators.sampled_s(count)
        return found


class SumOfOperators:
    """`OperatorsAlone`, applied: a step is the sum of its operators (Vidur section 4.4)."""

    def __init__(self, operators: OperatorsAlone) -> None:
        self._operators = operators
        self._by_tokens: dict[int, float] = {}  # sums of curves, as they are asked for
        self._by_samples: dict[int, float] = {}

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        operators, count, num_samples = self._operators, work.num_tokens, work.num_samples
        tokens_s = self._by_tokens.get(count)
        if tokens_s is None:
            tokens_s = self._by_tokens[count] = _sum(operators.tokens_s, count)
        sampled_s = self._by_samples.get(num_samples, 0.0)
        if num_samples and not sampled_s:
            sampled_s = self._by_samples[num_samples] = _sum(operators.sampled_s, num_samples)
        return operators.overhead_s + tokens_s + sampled_s + sum(self._attention_s(work))

    def decodes_s(self, num_decodes: int) -> Callable[[int], float]:
        """The same of steps of so many decodes, all sampled, by the tokens they attend to."""
        return lambda context: self.step_s(StepWork(num_decodes, context, (), num_decodes))

    def parts(self, work: StepWork) -> Iterator[StepPart]:
        """Each operator by its name, with its own input."""
        operators, (prefill_s, decode_s) = self._operators, self._attention_s(work)
        found = [
            *(
                StepPart(operator.name, work.num_tokens, operator.time_s(work.num_tokens))
                for operator in operators.tokens_s
            ),
            StepPart("prefill attention", work.prompts()[1] // 2, prefill_s),
            StepPart("decode attention", work.decode_context, decode_s),
            StepPart("overhead", 1, operators.overhead_s),
        ]
        if work.num_samples:
            found += [
                StepPart(operator.name, work.num_samples, operator.time_s(work.num_samples))
                for operator in operators.sampled_s
            ]
        return (part for part in found if part.time_s)

    def _attention_s(self, work: StepWork) -> tuple[float, float]:
        """Attention of chunks and of decodes.

        Several chunks are a single one of sqrt(sum of squares) tokens, as much behind others as
        leaves the pairs of tokens what they are.
        """
        operators, prefill_s, decode_s = self._operators, 0.0, 0.0
        if len(work.chunks) == 1:
            prefill_s = operators.prefill_s(*work.chunks[0])
        elif work.chunks:
            tokens = math.sqrt(sum(count * count for count, _ in work.chunks))
            before = sum(count * before for count, before in work.chunks) / tokens
            prefill_s = operators.prefill_s(tokens, before)
        if work.num_decodes:
            decode_s = operators.decode_s(work.num_decodes, work.decode_context / work.num_decodes)
        return prefill_s, decode_s


def _sum(operators: tuple[OperatorCurve, ...], at: int) -> float:
    return sum(operator.time_s(at) for operator in operators)


STEPS, OPERATORS = STEP_TIMES = "steps", "operators"
"""The sources of a simulation's step times: a fit to whole steps, or operators measured alone."""


def chosen(profile: Profile, times: str) -> Profile:
    """The profile with `operators` only where its step times are their sum: asked for by `times`
    (OPERATORS, STEPS), else ("") where it errs less on whole steps than the fit to them does.
    """
    alone = profile.operators
    if alone is None or times == OPERATORS:
        return profile
    is_better = bool(alone.mape) and alone.mape < profile.fit.mape
    return profile if is_better and times != STEPS else replace(profile, operators=None)


def cost_of(profile: Profile) -> StepCost:
    """The cost of steps under a profile that was `chosen`."""
    if profile.operators is not None:
        return SumOfOperators(profile.operators)
    return step_cost(profile.step)


def step_cost(step: PhaseFit | Operators) -> StepCost:
    """The cost of steps under a profile's fit."""
    return PhaseCost(step) if isinstance(step, PhaseFit) else OperatorCost(step)

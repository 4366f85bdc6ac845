"""The lengths of answers, while many have not ended: Kaplan and Meier's estimate.

Early in a load the ended answers are the short ones. An unended answer shows that it is longer than
its tokens so far: each length's hazard is that of the answers that came so far.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

Answer = tuple[int, int]
"""(tokens of its prompt, output tokens so far)."""

_Step = tuple[float, int, float]
"""(the chance of such an answer, tokens of its prompt, output tokens)."""


def likely_answers(
    ended: Iterable[Answer], unended: Iterable[Answer], count: int, each: float = 1.0
) -> tuple[list[Answer], float]:
    """(`count` equally likely answers in order of length, the mean length).

    Each of `ended` stands for `each` ended answers. Answers that survive the longest of them go on
    as if memoryless. At least one must have ended. Each answer is the mean of its part of all: a
    few picked ones would have long ones with long prompts among them by chance.
    """
    lengths = [(tokens, 0, prompt) for prompt, tokens in ended]
    num_ended, decodes = each * len(lengths), each * sum(tokens for tokens, _, _ in lengths)
    more = [(tokens, 1, prompt) for prompt, tokens in unended]
    lengths = sorted(lengths + more)
    excess = (decodes + sum(tokens for tokens, _, _ in more)) / num_ended
    at_risk, survival = num_ended + len(more), 1.0
    steps: list[_Step] = []
    for tokens, is_open, prompt in lengths:
        if not is_open:
            died = min(survival, survival * each / at_risk)
            survival -= died
            steps.append((died, prompt, tokens))
        at_risk -= 1.0 if is_open else each
    mean = sum(chance * tokens for chance, _, tokens in steps)
    if survival > _NONE:
        _, prompt, longest = steps[-1]
        mean += survival * (longest + excess)
        steps += _memoryless(survival, prompt, longest, excess, count)
    return list(_parts(steps, count)), mean


def _memoryless(
    survival: float, prompt: int, longest: float, excess: float, count: int
) -> Iterator[_Step]:
    """The steps beyond the longest ended answer, cut where the `count` parts of all end."""
    parts = math.ceil(survival * count - _NONE)
    edges = [survival, *(number / count for number in range(parts - 1, -1, -1))]
    for above, under in pairwise(edges):
        # The mean of -ln(u) for u between the two, each as a share of what survives.
        high, low = above / survival, under / survival
        beyond = (_entropy(high) - _entropy(low)) / (high - low)
        yield above - under, prompt, longest + excess * beyond


def _entropy(share: float) -> float:
    """The integral of -ln from 0 on."""
    return share - share * math.log(share) if share > 0.0 else 0.0


def _parts(steps: Iterable[_Step], count: int) -> Iterator[Answer]:
    """For each `count`th of all, by length: (prompt as its rows see it, mean length)."""
    given, whole = 0, 1.0 / count
    left, tokens_sum, seen_sum = whole, 0.0, 0.0
    for chance, prompt, tokens in steps:
        rest = chance
        while rest >= left and given < count - 1:
            rest -= left
            yield _answer(tokens_sum + left * tokens, seen_sum + left * tokens * prompt, whole)
            given, left, tokens_sum, seen_sum = given + 1, whole, 0.0, 0.0
        left -= rest
        tokens_sum += rest * tokens
        seen_sum += rest * tokens * prompt
    yield _answer(tokens_sum, seen_sum, whole - left)


def _answer(tokens_sum: float, seen_sum: float, chance: float) -> Answer:
    return round(seen_sum / tokens_sum), round(tokens_sum / chance)


_NONE = 1e-9
"""A chance that rounding leaves where none survives."""

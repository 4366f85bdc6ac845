"""How long answers are, while many have not ended: Kaplan and Meier's estimate.

Early in a load those that have ended are the short ones. One that has not says that it is longer
than what was drawn of it: each length's hazard is that of those that came so far.
"""

import math
from collections.abc import Iterable

Answer = tuple[int, int]
"""(tokens of its prompt, tokens of its own that were drawn)."""


def likely_answers(
    ended: Iterable[Answer], unended: Iterable[Answer], count: int, each: float = 1.0
) -> tuple[list[Answer], float]:
    """(`count` equally likely answers in order of length, the mean length).

    Each of `ended` stands for so many that have. What survives the longest of them goes on as if
    memoryless. At least one must have ended.
    """
    lengths = [(tokens, 0, prompt) for prompt, tokens in ended]
    num_ended, drawn = each * len(lengths), each * sum(tokens for tokens, _, _ in lengths)
    more = [(tokens, 1, prompt) for prompt, tokens in unended]
    lengths = sorted(lengths + more)
    excess = (drawn + sum(tokens for tokens, _, _ in more)) / num_ended
    at_risk, survival = num_ended + len(more), 1.0
    steps: list[tuple[float, Answer]] = []  # (chance of no more tokens, of which answer)
    mean = 0.0
    for tokens, is_open, prompt in lengths:
        if not is_open:
            died = min(survival, survival * each / at_risk)
            survival -= died
            mean += died * tokens
            steps.append((1.0 - survival, (prompt, tokens)))
        at_risk -= 1.0 if is_open else each
    prompt, longest = steps[-1][1]
    mean += survival * (longest + excess) if survival > _NONE else 0.0
    found, index = [], 0
    for number in range(count):
        chance = (number + 0.5) / count
        while index < len(steps) and steps[index][0] < chance:
            index += 1
        if index < len(steps):
            found.append(steps[index][1])
        else:
            beyond = -excess * math.log((1.0 - chance) / survival)
            found.append((prompt, longest + round(beyond)))
    return found, mean


_NONE = 1e-9
"""A chance that rounding leaves where nobody survives."""

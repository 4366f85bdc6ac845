"""How long answers are, while many have not ended: Kaplan and Meier's estimate.

Early in a load those that have ended are the short ones. One that has not says that it is longer
than what was drawn of it: each length's hazard is that of those that came so far.
"""

import math
from collections.abc import Iterable

Answer = tuple[int, int]
"""(tokens of its prompt, tokens of its own that were drawn)."""


def likely_answers(
    ended: Iterable[Answer], unended: Iterable[Answer], count: int
) -> tuple[list[Answer], float]:
    """(`count` equally likely answers in order of length, the mean length).

    What survives the longest that has ended goes on as if memoryless. At least one must have ended.
    """
    lengths = [(tokens, 0, prompt) for prompt, tokens in ended]
    num_ended, num_tokens = len(lengths), sum(tokens for tokens, _, _ in lengths)
    lengths += [(tokens, 1, prompt) for prompt, tokens in unended]
    num_tokens += sum(tokens for tokens, is_open, _ in lengths[num_ended:] if is_open)
    lengths.sort()
    at_risk, survival = len(lengths), 1.0
    steps: list[tuple[float, Answer]] = []  # (chance of no more tokens, of which answer)
    mean = 0.0
    for tokens, is_open, prompt in lengths:
        if not is_open:
            died = survival / at_risk
            survival -= died
            mean += died * tokens
            steps.append((1.0 - survival, (prompt, tokens)))
        at_risk -= 1
    prompt, longest = steps[-1][1]
    excess = num_tokens / num_ended
    mean += survival * (longest + excess) if survival > _NONE else 0.0
    found, index = [], 0
    for number in range(count):
        chance = (number + 0.5) / count
        while index < len(steps) and steps[index][0] < chance:
            index += 1
        if index < len(steps):
            found.append(steps[index][1])
        else:
            more = -excess * math.log((1.0 - chance) / survival)
            found.append((prompt, longest + round(more)))
    return found, mean


_NONE = 1e-9
"""A chance that rounding leaves where nobody survives."""

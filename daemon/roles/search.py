"""Which splits are forecast: all of a few, and of many those on the way to the best."""

from collections.abc import Callable, Sequence

from daemon.roles.forecast import Forecast, Split

ALL_OF = 8
"""So many splits are all forecast."""
MOST_STEPS = 4
"""So far the search goes on, split by split, from where both promises are kept alike."""


def searched(
    splits: Sequence[Split], forecast: Callable[[Split], Forecast], present: str
) -> list[Forecast]:
    """Forecasts of splits, which have more and more prefill instances: in that order, with those of
    the one in force and of the best that was found.

    With each prefill instance more TTFT is kept by more answers, and TPOT by fewer. So the best is
    near the first split that keeps TTFT for as many as TPOT, and away from it both get worse.
    """
    known: dict[int, Forecast] = {}

    def told(index: int) -> Forecast:
        if index not in known:
            known[index] = forecast(splits[index])
        return known[index]

    if len(splits) <= ALL_OF:
        return [forecast(one) for one in splits]
    low, high = 0, len(splits) - 1
    while low < high:
        middle = (low + high) // 2
        if told(middle).ttft_kept >= told(middle).tpot_kept:
            high = middle
        else:
            low = middle + 1
    for step in (-1, 1):
        place = low
        for _ in range(MOST_STEPS):
            beyond = place + step
            if not 0 <= beyond < len(splits) or told(beyond).attainment < told(place).attainment:
                break
            place = beyond
    for index, one in enumerate(splits):
        if str(one) == present:
            told(index)
    return [known[index] for index in sorted(known)]

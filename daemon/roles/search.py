"""The search among splits: all of a few are forecast, of many those on the way to the best."""

from collections.abc import Callable, Sequence

from daemon.roles.forecast import Forecast, Split

ALL_OF = 8
"""Most splits that are all forecast."""
MOST_STEPS = 4
"""Most splits that the search goes on to either side, from where both SLOs are met alike."""


def searched(
    splits: Sequence[Split], forecast: Callable[[Split], Forecast], present: str
) -> list[Forecast]:
    """Forecasts of splits, which have more and more prefill instances, in that order; the split in
    force and the best that was found are among them.

    With each further prefill instance more answers meet TTFT, and fewer TPOT. So the best is near
    the first split where as many meet TTFT as TPOT, and away from it both get worse.
    """
    known: dict[int, Forecast] = {}

    def forecast_of(index: int) -> Forecast:
        if index not in known:
            known[index] = forecast(splits[index])
        return known[index]

    if len(splits) <= ALL_OF:
        return [forecast(split) for split in splits]
    low, high = 0, len(splits) - 1
    while low < high:
        middle = (low + high) // 2
        if forecast_of(middle).ttft_kept >= forecast_of(middle).tpot_kept:
            high = middle
        else:
            low = middle + 1
    for step in (-1, 1):
        place = low
        for _ in range(MOST_STEPS):
            beyond = place + step
            if (
                not 0 <= beyond < len(splits)
                or forecast_of(beyond).attainment < forecast_of(place).attainment
            ):
                break
            place = beyond
    for index, split in enumerate(splits):
        if str(split) == present:
            forecast_of(index)
    return [known[index] for index in sorted(known)]

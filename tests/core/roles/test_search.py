"""The search among many splits finds the best of them, or one that is as good."""

import random

import msgspec

from daemon.roles.forecast import Forecast, Split, forecast
from daemon.roles.load import OfferedLoad
from daemon.roles.search import ALL_OF, searched
from daemon.state.slo import Slo
from tests.core.roles.looking import FLEET


def splits(instances: int) -> list[Split]:
    return [Split(one, instances - one) for one in range(1, instances)]


def test_few_splits_are_all_forecast() -> None:
    load = OfferedLoad(8.0, (900,) * 32, (60,) * 32, 60.0)
    every = splits(ALL_OF + 1)
    told = searched(every, lambda one: forecast(load, FLEET, Slo(1.0, 0.03), one), "mixed")
    assert [one.choice for one in told] == [str(one) for one in every]


def test_of_many_the_best_is_found_with_few_forecasts() -> None:
    chance = random.Random(0)
    for _ in range(30):
        num = chance.choice([12, 33, 64])
        prompts = tuple(1 + int(chance.expovariate(1 / 900)) for _ in range(64))
        answers = tuple(1 + int(chance.expovariate(1 / 60)) for _ in range(64))
        load = OfferedLoad(chance.uniform(0.5, 4.0) * num, prompts, answers, 60.0)
        slo = Slo(chance.choice([0.25, 1.0]), chance.choice([0.025, 0.03, 0.06]))
        asked: list[Split] = []

        def told(
            split: Split,
            load: OfferedLoad = load,
            slo: Slo = slo,
            asked: list[Split] = asked,
        ) -> Forecast:
            asked.append(split)
            return forecast(load, FLEET, slo, split)

        found = searched(splits(num), told, f"3:{num - 3}")
        assert len(asked) == len(found) <= 14
        assert f"3:{num - 3}" in {one.choice for one in found}, "the one in force"
        best = max(forecast(load, FLEET, slo, one).attainment for one in splits(num))
        assert max(one.attainment for one in found) >= best - 0.05, "less than a change is worth"


def test_bent_steps_keep_as_much_as_the_best_chunk() -> None:
    """TPOT asks for short chunks, TTFT for long ones; of these loads each has another best one."""
    bent = msgspec.structs.replace(FLEET, bends=True)
    slo = Slo(1.0, 0.06)
    for rate in (6.0, 10.0, 12.0, 14.0):
        load = OfferedLoad(rate, (300, 600, 900, 1800) * 8, (30, 60, 90) * 8, 60.0)
        found = []
        for chunk in (128, 256, 512):
            fleet = msgspec.structs.replace(FLEET, budget_tokens=chunk, chunk_tokens=chunk)
            found.append(forecast(load, fleet, slo, Split(0, 4)).attainment)
        assert forecast(load, bent, slo, Split(0, 4)).attainment >= max(found) - 1e-9

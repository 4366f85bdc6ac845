"""Roles change rarely: never under a load that stays, twice a period under one that swings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.roles.decide import MIXED
from daemon.roles.forecast import Split, forecast
from daemon.roles.load import OfferedLoad
from daemon.state.slo import Slo
from tests.core.roles.looking import FLEET, Looking

TIGHT = Slo(0.5, 0.030)


@settings(max_examples=8, deadline=None)
@given(
    st.floats(1.0, 25.0),
    st.sampled_from([60, 220, 900]),
    st.sampled_from([40, 200]),
    st.sampled_from([0.027, 0.030, 0.035, 0.1]),
    st.integers(0, 10_000),
)
def test_a_load_that_stays_changes_nothing_after_the_first_minute(
    rate: float, prompt: int, answer: int, tpot_s: float, seed: int
) -> None:
    looking = Looking(Slo(0.5, tpot_s), seed=seed)
    looking.run(lambda now: (rate, prompt, answer), 600.0)
    assert [one for one in looking.changes if one[0] > 66.0] == []
    assert len(looking.changes) <= 1


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(6.0, 20.0), (3.0, 16.0)]))
def test_a_square_wave_changes_twice_a_period(seed: int, rates: tuple[float, float]) -> None:
    """A period of an hour is cut to 20 minutes: less would be easier."""
    half_s = 600.0
    looking = Looking(TIGHT, seed=seed)
    looking.run(lambda now: (rates[int(now / half_s) % 2], 220, 200), 4 * half_s)
    for period in range(2):
        inside = [one for one in looking.changes if int(one[0] / (2 * half_s)) == period]
        assert len(inside) <= 2, looking.changes


LIGHT, HEAVY = (1.0, 60, 40), (7.0, 900, 60)
"""Requests a second, and means of prompts and answers."""
HOURLY = Slo(1.0, 0.030)
CHOICES = {str(one): one for one in (Split(0, 4), Split(1, 3), Split(2, 2), Split(3, 1))}


def true_shares(rate: float, prompt: int, answer: int) -> dict[str, float]:
    """What each choice keeps of a load whose prompts and answers are memoryless."""
    chance = np.random.default_rng(0)
    prompts = tuple((1.0 + chance.exponential(prompt, 512)).astype(int).tolist())
    answers = tuple((1.0 + chance.exponential(answer, 512)).astype(int).tolist())
    load = OfferedLoad(rate, prompts, answers, float(answer))
    return {
        name: forecast(load, FLEET, HOURLY, split).attainment for name, split in CHOICES.items()
    }


@pytest.mark.parametrize("surprise", [0.0, 0.4])
def test_an_hours_square_wave_with_what_answers_kept(surprise: float) -> None:
    """Two hours, of which each is half light and half heavy. Splits keep as much as they should, or
    so much less that they are given up.
    """
    halves = LIGHT, HEAVY
    shares = [true_shares(*half) for half in halves]
    assert shares[1]["2:2"] > shares[1][MIXED] + 0.1, "there is something to gain"

    def keeps(now: float, choice: str) -> float:
        return shares[int(now / 1800.0) % 2][choice] - surprise * (choice != MIXED)

    looking = Looking(HOURLY, keeps=keeps)
    looking.run(lambda now: halves[int(now / 1800.0) % 2], 7200.0)
    for period in range(2):
        inside = [one for one in looking.changes if int(one[0] / 3600.0) == period]
        assert 1 <= len(inside) <= 2, looking.changes


@pytest.mark.parametrize("half", [LIGHT, HEAVY])
def test_a_load_that_stays_for_an_hour_with_what_answers_kept(half: tuple[float, int, int]) -> None:
    shares = true_shares(*half)
    looking = Looking(HOURLY, keeps=lambda _now, choice: shares[choice])
    looking.run(lambda _now: half, 3600.0)
    assert [one for one in looking.changes if one[0] > 66.0] == []


def test_a_load_that_becomes_heavy_gets_a_split_and_a_light_one_mixed() -> None:
    looking = Looking(Slo(1.0, 0.030))

    def rates(now: float) -> tuple[float, int, int]:
        return (2.0, 60, 40) if int(now / 300.0) % 2 == 0 else (8.0, 900, 60)

    looking.run(rates, 900.0)
    assert len(looking.changes) == 2, looking.changes
    (first_s, split), (second_s, mixed) = looking.changes
    assert 300.0 < first_s < 380.0 and ":" in split
    assert 600.0 < second_s < 680.0 and mixed == "mixed"


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_a_few_requests_decide_nothing_soon(rate: float) -> None:
    looking = Looking(TIGHT)
    looking.run(lambda now: (rate, 220, 200), 120.0)
    assert looking.changes == []

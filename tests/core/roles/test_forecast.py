"""Forecasts of mixed instances and of splits, reckoned by hand and against each other."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.roles.forecast import Costs, Fleet, Split, forecast, mean_forecast
from daemon.roles.kaplan_meier import likely_answers
from daemon.roles.load import OfferedLoad
from daemon.state.slo import Slo

COSTS = Costs(0.020, 0.001, 0.0, 0.0005, 0.0)
FLEET = Fleet(COSTS, COSTS, 1 << 20, 256, 512, 512)
LOOSE = Slo(10.0, 1.0)
EQUAL = (100,) * 32


def load(rate: float, prompt: int = 100, answer: int = 100, **changes: object) -> OfferedLoad:
    made = OfferedLoad(rate, (prompt,) * 32, (answer,) * 32, float(answer))
    return msgspec.structs.replace(made, **changes)


def test_prompts_take_their_share_of_mixed_steps() -> None:
    """Two requests a second whose prompts add 50 ms: a tenth of the time. With steps of 20 ms and
    1 ms for each who draws, S = 0.02 + 200 S 0.001 + 2 S 0.05.
    """
    told = forecast(load(2.0), FLEET, LOOSE, Split(0, 1))
    assert told.tpot_s == pytest.approx(0.02 / (1 - 0.2 - 0.1))
    assert told.choice == "mixed"
    assert told.attainment == pytest.approx(1.0)


@pytest.mark.parametrize("split", [Split(0, 2), Split(1, 1)])
def test_instances_with_unlike_budgets_have_each_its_own(split: Split) -> None:
    """One small budget is not that of all: two of three instances compute a prompt in one step."""
    small = msgspec.structs.replace(FLEET, budget_tokens=32, chunk_tokens=32)
    tight = Slo(0.3, 1.0)
    low, high = (forecast(load(3.0), one, tight, split) for one in (small, FLEET))
    told = mean_forecast(load(3.0), [(small, 1), (FLEET, 2)], tight, split)
    assert low.ttft_s > high.ttft_s > 0.0
    assert told.ttft_s == pytest.approx((low.ttft_s + 2 * high.ttft_s) / 3)
    assert told.attainment == pytest.approx((low.attainment + 2 * high.attainment) / 3)
    assert told.choice == str(split) and mean_forecast(load(3.0), [(small, 1)], tight, split) == low


def test_a_split_draws_without_prompts() -> None:
    """S = 0.02 + 200 S 0.001. Once come a step where the prompt was computed, with another prompt
    where one is in line, the transfer and half of a step here, instead of one step here.
    """
    fleet = msgspec.structs.replace(FLEET, transfer_s=0.0055)
    told = forecast(load(2.0), fleet, LOOSE, Split(1, 1))
    queued = 2.0 * (0.020 * 100 / 512 + 0.050)
    once_s = 0.020 + queued * 0.050 + 0.0055 + 0.025 / 2 - 0.025
    assert told.tpot_s == pytest.approx(0.025 + once_s / 99)
    assert told.choice == "1:1"


def test_a_short_answer_keeps_what_another_prompt_leaves_of_its_promise() -> None:
    """Ten gaps of 21 ms each. With a prompt beside it one waits 50 ms longer, which is for nobody
    to see in a hundred gaps; without, each has the time.
    """
    short = load(2.0, answer=11)
    queued = 2.0 * (0.020 * 100 / 512 + 0.050)
    for tpot_s, kept in ((0.024, 1.0 - queued), (0.030, 1.0)):
        told = forecast(short, FLEET, Slo(10.0, tpot_s), Split(1, 1))
        assert told.tpot_kept == pytest.approx(kept, abs=0.01)


def test_a_prompt_waits_for_prompts_alone() -> None:
    """One who comes to an idle instance takes a step with its prompt: 70 ms. Two a second have
    14 % of it busy, half of 70 ms is left of a step then; and the line: each has 100 / 512 of a
    step's base and 50 ms of its own.
    """
    told = forecast(load(2.0), FLEET, LOOSE, Split(1, 1))
    work_s = 0.020 * 100 / 512 + 0.050
    busy = 2.0 * work_s
    line_s = busy * work_s / (2 * (1 - busy))
    assert told.ttft_s == pytest.approx(0.070 + 0.14 * 0.035 + line_s)


def test_too_many_prompts_or_answers_keep_nothing() -> None:
    assert forecast(load(30.0), FLEET, LOOSE, Split(0, 1)).attainment == 0.0
    assert forecast(load(30.0, answer=10), FLEET, LOOSE, Split(1, 3)).ttft_kept == 0.0
    assert forecast(load(8.0, prompt=10, answer=200), FLEET, LOOSE, Split(3, 1)).tpot_s == -1.0


def test_a_promise_between_both_speaks_for_the_split() -> None:
    """Mixed steps take 28.6 ms, those of a split 25."""
    tight = Slo(1.0, 0.0275)
    mixed = forecast(load(4.0), FLEET, tight, Split(0, 2))
    apart = forecast(load(2.0), FLEET, tight, Split(1, 1))
    assert mixed.attainment < 0.5 < apart.attainment


def test_memory_that_is_too_small_keeps_nothing() -> None:
    small = msgspec.structs.replace(FLEET, kv_tokens=200)
    assert forecast(load(2.0), small, LOOSE, Split(0, 1)).attainment < 0.05
    assert forecast(load(2.0), small, LOOSE, Split(0, 1)).kv_share > 1.0


def test_what_is_cached_is_not_computed() -> None:
    all_new = forecast(load(2.0, 1000), FLEET, LOOSE, Split(1, 1))
    cached = forecast(load(2.0, 1000, cached_share=0.9), FLEET, LOOSE, Split(1, 1))
    assert all_new.ttft_kept == 0.0
    assert cached.ttft_kept > 0.99


def test_where_one_has_ended_lengths_are_as_if_memoryless() -> None:
    answers, mean = likely_answers([(100, 1)], [(100, 1)] * 99, 256)
    made = OfferedLoad(1.0, EQUAL, tuple(tokens for _, tokens in answers), mean)
    lengths = made.lengths
    assert sum(lengths) / len(lengths) == pytest.approx(100.0, rel=0.03)
    assert made.decode_context == pytest.approx(200.0, rel=0.1), (
        "100 of the prompt, E[n^2] / 2 E[n]"
    )


def test_rows_of_long_answers_have_the_prompts_of_those() -> None:
    """32 answers of 10 tokens to prompts of 100, and 32 of 90 to prompts of 900."""
    prompts, answers = (100,) * 32 + (900,) * 32, (10,) * 32 + (90,) * 32
    made = OfferedLoad(1.0, prompts, answers, 50.0, answered=prompts)
    own = (10 * 10 + 90 * 90) / 2 / (2 * 50)
    assert made.decode_context == pytest.approx(0.1 * 100 + 0.9 * 900 + own)
    unknown = OfferedLoad(1.0, prompts, answers, 50.0)
    assert unknown.decode_context == pytest.approx(500 + own)


@given(
    st.floats(0.2, 40.0),
    st.integers(1, 2000),
    st.integers(1, 1000),
    st.integers(0, 7),
    st.floats(0.01, 5.0),
    st.floats(0.005, 0.5),
)
def test_shares_are_shares_and_more_load_keeps_less(
    rate: float, prompt: int, answer: int, prefill: int, ttft_s: float, tpot_s: float
) -> None:
    split, slo = Split(prefill, 8 - prefill), Slo(ttft_s, tpot_s)
    less = forecast(load(rate, prompt, answer), FLEET, slo, split)
    more = forecast(load(1.5 * rate, prompt, answer), FLEET, slo, split)
    for one in (less, more):
        assert 0.0 <= one.attainment <= 1.0
        assert one.attainment <= min(one.ttft_kept, one.tpot_kept) + 1e-9
    if less.tpot_s >= 0.0 and less.tpot_s <= tpot_s:
        assert more.attainment <= less.attainment + 0.02

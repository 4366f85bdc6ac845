"""Drafts where they bring tokens: by how sure they are, how many rows run, and what one takes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.scheduler.drafting import (
    KEPT,
    LEAST_GAIN,
    MOST_CHANCE,
    DraftRecord,
    Trials,
    allot,
    may_pay,
)

STEP_S, DRAFT_S = 0.020, 0.001


def rate(
    granted: tuple[int, ...], chances: list[float], num_rows: int, step_s: float, draft_s: float
) -> float:
    """Tokens a second."""
    drawn = zip(chances, granted, strict=True)
    tokens = num_rows + sum(chance**j for chance, count in drawn for j in range(1, count + 1))
    return tokens / (step_s + draft_s * sum(granted))


@given(
    st.lists(st.tuples(st.floats(0.01, MOST_CHANCE), st.integers(0, 4)), min_size=1, max_size=3),
    st.integers(0, 9),
    st.floats(0.001, 0.1),
    st.floats(1e-6, 0.01),
)
def test_nothing_else_brings_more_tokens_a_second(
    rows: list[tuple[float, int]], others: int, step_s: float, draft_s: float
) -> None:
    chances, offers = [row[0] for row in rows], [row[1] for row in rows]
    asked = chances, len(rows) + others, step_s, draft_s
    found = tuple(allot(chances, offers, *asked[1:], 99))
    best = max(rate(one, *asked) for one in itertools.product(*(range(n + 1) for n in offers)))
    none = rate((0,) * len(rows), *asked)
    if any(found):
        assert rate(found, *asked) == pytest.approx(best) and best >= LEAST_GAIN * none * 0.999999
    else:
        assert best <= LEAST_GAIN * none * 1.000001


def test_one_row_drafts_as_far_as_it_is_sure() -> None:
    counts = [allot([chance], [15], 1, STEP_S, DRAFT_S, 99)[0] for chance in (0.04, 0.3, 0.6, 0.97)]
    assert counts == sorted(counts) and counts[0] == 0 and 1 <= counts[1] < counts[2] < 15
    assert counts[3] == 15


def test_many_rows_do_not_draft() -> None:
    """Each row's step is worth as much, and the steps are longer: a draft must be surer."""

    def drafts(num_rows: int) -> int:
        step_s = STEP_S + DRAFT_S * num_rows
        return sum(allot([0.6] * num_rows, [8] * num_rows, num_rows, step_s, DRAFT_S, 999))

    assert drafts(1) >= 3 and drafts(4) > 0 and drafts(30) == drafts(100) == 0


def test_the_surer_row_drafts_first() -> None:
    few, many = allot([0.3, 0.9], [8, 8], 2, STEP_S, 0.003, 99)
    assert few < many


def test_who_has_to_wait_for_steps_in_flight_must_be_surer() -> None:
    """Else the next step would be planned late, for drafts that what is in flight undoes."""
    asked = [8], 1, STEP_S, 0.2 * STEP_S, 99, 1.0
    for ahead, least in ((0, 0.2), (1, 0.4), (2, 0.5)):
        low, high = (sum(allot([least + more], *asked, ahead)) for more in (0.0, 0.15))
        assert low == 0 < high, (ahead, low, high)


def test_a_step_has_room_for_so_many() -> None:
    assert sum(allot([0.9, 0.8], [8, 8], 2, STEP_S, 1e-6, 5)) == 5
    assert allot([0.9], [8], 1, STEP_S, 1e-6, 0) == [0]


def test_what_a_step_has_no_time_for_is_not_offered() -> None:
    assert may_pay(1, STEP_S, DRAFT_S) and may_pay(9, STEP_S + 9 * DRAFT_S, DRAFT_S)
    assert not may_pay(1000, STEP_S + 1000 * DRAFT_S, DRAFT_S)
    assert not may_pay(4, 0.0, 0.0), "no step was timed"


def waits_of(trials: Trials, offer: int) -> int:
    """The steps without drafts until it is as likely as one in four again."""
    one, waits = replace(trials), 0
    while one.share(0.5) < 0.25:
        one.forget(offer)
        waits += 1
    return waits


def test_acceptance_is_learned_and_forgotten() -> None:
    trials = Trials()
    assert trials.share(0.5) == 0.5 and trials.share(0.9) == 0.9
    for _ in range(20):
        trials.learn(8, 8, KEPT)
    assert trials.share(0.5) > 0.9
    for _ in range(4):
        trials.learn(8, 0, KEPT)
    assert trials.share(0.5) < 0.75
    for _ in range(30):
        trials.learn(2, 0, KEPT)
    assert trials.share(0.5) < 0.2
    for _ in range(30):
        trials.learn(2, 0, 1.0)
    waits = {offer: waits_of(trials, offer) for offer in (2, 14)}
    assert 8 < waits[14] < 60 < waits[2] < 400, "it is tried again, sooner where it seems to quote"


def test_what_was_behind_a_miss_was_not_tried() -> None:
    one, other = Trials(), Trials()
    one.learn(8, 2, KEPT)
    other.learn(3, 2, KEPT)
    assert one == other and one.tried == 3


def test_who_repeats_a_longer_stretch_is_surer() -> None:
    record = DraftRecord()
    shares = [record.share(offer) for offer in (1, 2, 4, 8, 14, 20)]
    assert shares == sorted(shares) and shares[0] < 0.5 < 0.85 < shares[-2] == shares[-1]


def test_a_row_begins_with_the_chance_of_all_that_were_offered_as_many() -> None:
    record, row = DraftRecord(), Trials()
    long = record.share(14)
    for _ in range(20):
        record.learn(2, 2, 0)
    few = row.share(record.share(2))
    assert few < 0.1 and record.share(14) == long
    assert sum(allot([few], [2], 1, STEP_S, 0.2 * STEP_S, 99)) == 0
    for _ in range(60):
        record.forget(2)
    assert 0.1 < record.share(2) < 0.4
    for _ in range(60):
        record.learn(2, 8, 8)
    assert record.share(2) > 0.9


def test_a_record_is_what_its_numbers_say() -> None:
    record = DraftRecord()
    record.learn(3, 3, 2)
    record.timed(True, 1.4)
    again = DraftRecord.restored(record.state())
    assert again.state() == record.state() and again.factor == record.factor > 1.0
    assert again.share(3) == record.share(3) != DraftRecord().share(3)


def test_what_steps_with_drafts_really_take_is_reckoned_with() -> None:
    """They are planned when the step before has answered; others are ahead of it."""
    record = DraftRecord()
    for _ in range(40):
        record.timed(False, 1.1)
        record.timed(True, 1.4)
    assert 1.15 < record.factor < 1.3
    asked = [0.3], [2], 1, STEP_S, DRAFT_S, 99
    assert sum(allot(*asked)) and not sum(allot(*asked, record.factor))
    for _ in range(200):
        record.timed(False, 1.1)
    assert record.factor < 1.05, "they are tried again"
    record.timed(True, 1000.0)
    assert record.factor < 1.2, "one slow step says little"

"""The store: bounded, aged, in order; nearest rows as a plain search finds them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.length_models.features import NUM_FEATURES
from daemon.length_models.prediction import Asked
from daemon.length_models.store import VectorStore
from tests.length_models.made import unit

steps = st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), max_size=300)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 40), st.sampled_from([math.inf, 3.0, 100.0]))
def test_it_holds_the_newest_that_are_young_enough_in_order(
    moves: list[tuple[float, bool]], max_rows: int, max_age_s: float
) -> None:
    store = VectorStore(max_rows, max_age_s)
    now_s, added = 0.0, []
    for number, (wait_s, with_vector) in enumerate(moves):
        now_s += wait_s
        store.advance(now_s)
        vector = unit(1.0, number) if with_vector else None
        store.add(Asked(number, vector=vector), number + 1)
        added.append((now_s, number, vector))
        kept = [one for one in added if one[0] >= now_s - max_age_s][-max_rows:]
        assert store.rows["num_prompt_tokens"].tolist() == [one[1] for one in kept]
        assert store.rows["num_tokens"].tolist() == [one[1] + 1 for one in kept]
        assert store.rows["time_s"].tolist() == [one[0] for one in kept]
        if store.dim:
            expected = [np.zeros(2) if one[2] is None else one[2] for one in kept]
            assert np.array_equal(store.vectors, np.array(expected, np.float32))
    assert len(store) <= max_rows


def test_memory_stays_bounded() -> None:
    store = VectorStore(max_rows=100)
    for number in range(5000):
        store.add(Asked(number, vector=unit(1.0, 2.0)), 1)
    held = store.vectors.base
    assert held is not None and held.shape[0] <= 200
    assert store.rows["num_prompt_tokens"].tolist() == list(range(4900, 5000))


def test_a_clock_that_goes_back_is_not_believed() -> None:
    store = VectorStore(max_age_s=10.0)
    store.advance(100.0)
    store.add(Asked(1), 1)
    store.advance(50.0)
    store.add(Asked(2), 2)
    assert store.rows["time_s"].tolist() == [100.0, 100.0]
    store.advance(110.5)
    assert len(store) == 0


def test_a_row_keeps_all_that_was_said() -> None:
    store = VectorStore()
    features = np.arange(NUM_FEATURES, dtype=np.float32)
    store.add(Asked(7, 99, features, guess=28.6), 31)
    (row,) = store.rows
    assert (row["num_prompt_tokens"], row["max_tokens"]) == (7, 99)
    assert (row["num_tokens"], row["guess"]) == (31, 29)
    assert np.array_equal(row["features"], features)
    store.add(Asked(7, 1 << 40, guess=1e12), 31)
    assert store.rows["max_tokens"][-1] == store.rows["guess"][-1] == (1 << 31) - 1


def test_the_nearest_are_those_of_a_plain_search() -> None:
    chance = np.random.default_rng(2)
    vectors = [unit(*chance.normal(size=5)) for _ in range(300)]
    store = VectorStore()
    for number, vector in enumerate(vectors):
        store.add(Asked(number, vector=vector), number)
    wanted = unit(*chance.normal(size=5))
    cosines = [float(vector @ wanted) for vector in vectors]
    order = sorted(range(300), key=lambda number: -cosines[number])
    found, rows = store.nearest(wanted, 6, -1.0)
    assert sorted(rows["num_tokens"].tolist()) == sorted(order[:6])
    assert sorted(found.tolist()) == pytest.approx(sorted(cosines[n] for n in order[:6]), abs=1e-6)
    close = [number for number in order if cosines[number] >= 0.8]
    assert sorted(store.nearest(wanted, 300, 0.8)[1]["num_tokens"].tolist()) == sorted(close)


def test_among_equals_the_newest_count() -> None:
    store = VectorStore()
    for number in range(10):
        store.add(Asked(number, vector=unit(1.0, 1.0)), number)
    assert store.nearest(unit(1.0, 1.0), 3, 0.5)[1]["num_tokens"].tolist() == [7, 8, 9]


def test_vectors_of_another_encoder_are_dropped_and_lengths_kept() -> None:
    store = VectorStore()
    store.add(Asked(1), 10)
    store.add(Asked(2, vector=unit(1.0, 0.0)), 20)
    store.add(Asked(3, vector=unit(1.0, 0.0, 0.0)), 30)
    assert store.rows["num_tokens"].tolist() == [10, 20, 30]
    assert store.dim == 3
    assert np.array_equal(store.vectors[:2], np.zeros((2, 3)))
    assert store.nearest(unit(1.0, 0.0), 5, 0.1)[0].size == 0, "an old vector fits nothing"
    assert store.nearest(unit(1.0, 0.0, 0.0), 5, 0.1)[1]["num_tokens"].tolist() == [30]


def test_guesses_of_another_predictor_are_forgotten() -> None:
    store = VectorStore()
    store.signed_by("one")
    store.add(Asked(1, guess=9), 10)
    store.signed_by("one")
    assert store.rows["guess"].tolist() == [9]
    store.signed_by("other")
    assert store.rows["guess"].tolist() == [0]

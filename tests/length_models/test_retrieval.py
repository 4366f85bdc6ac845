"""ALISE's Algorithm 1, worked by hand: which rows are retrieved, and what they say together."""

import numpy as np
import pytest

from daemon.length_models.learned import Learned
from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.retrieval import Retrieval
from daemon.length_models.store import VectorStore
from tests.length_models.made import unit


class Fallback:
    """Always says 500, and counts how often it was taught."""

    declared = "fallback"
    taught = 0

    def guess(self, asked: Asked) -> float:
        return 500.0

    def learn(self) -> None:
        self.taught += 1


def at(cosine: float) -> Float32:
    """A vector with this cosine with the first axis."""
    return np.array([cosine, np.sqrt(1.0 - cosine * cosine)], np.float32)


def made(lengths: dict[float, int], most: int = 2, least_cosine: float = 0.6) -> Retrieval:
    """Knows answers of these lengths to prompts of these cosines."""
    store = VectorStore()
    for cosine, num_tokens in lengths.items():
        store.add(Asked(10, vector=at(cosine)), num_tokens)
    return Retrieval(store, Fallback(), most, least_cosine)


ASKED = Asked(10, vector=unit(1.0, 0.0))


def test_case_two_is_the_mean_of_the_nearest_weighted_by_similarity() -> None:
    """k = 2, s0 = 0.6: the rows at 1.0 and 0.8 count, (1.0 * 30 + 0.8 * 75) / 1.8 = 50."""
    found = made({0.8: 75, 0.1: 900, 1.0: 30, 0.7: 2000})
    assert found.guess(ASKED) == pytest.approx(50.0)


def test_fewer_than_k_count_where_no_more_are_near() -> None:
    assert made({0.9: 40, 0.5: 900}).guess(ASKED) == pytest.approx(40.0)


def test_case_one_is_the_regressor() -> None:
    assert made({0.59: 40, -1.0: 900}).guess(ASKED) == 500.0
    assert made({1.0: 40}).guess(Asked(10)) == 500.0, "there is no vector to compare"


@pytest.mark.parametrize(
    ("max_tokens", "cut_at", "counts_as"),
    [(75, 75, 75), (74, 75, 75), (76, 75, 500), (0, 75, 500), (4000, 900, 900)],
)
def test_a_neighbour_that_was_cut_counts_as_what_may_be_expected(
    max_tokens: int, cut_at: int, counts_as: int
) -> None:
    """As long as it was, where this one is cut there too; else as the regressor says, or more."""
    store = VectorStore()
    store.add(Asked(10, cut_at, vector=at(0.8)), cut_at)
    store.add(Asked(10, 50, vector=at(1.0)), 30)
    asked = Asked(10, max_tokens, vector=unit(1.0, 0.0))
    found = Retrieval(store, Fallback(), 2, 0.6).guess(asked)
    assert found == pytest.approx((0.8 * counts_as + 30) / 1.8)


def test_every_finished_request_updates_the_store_and_teaches_the_regressor() -> None:
    store, fallback = VectorStore(), Fallback()
    predictor = Learned(store, Retrieval(store, fallback))
    for _ in range(Learned.LEAST):
        predictor.observe(Asked(10, vector=unit(0.0, 1.0)), 40)
    assert predictor.predict(ASKED).middle == 500
    predictor.observe(ASKED, 70)
    assert predictor.predict(ASKED).middle == 70, "the next one like it is known"
    assert fallback.taught == Learned.LEAST + 1
    assert len(store) == Learned.LEAST + 1

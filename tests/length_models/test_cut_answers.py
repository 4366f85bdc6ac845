"""Answers that were cut at their limit: they teach that they are longer, and not how long."""

import msgspec
import numpy as np
import pytest

from daemon.length_models.prediction import Asked, Predictor
from daemon.length_models.registry import length_predictor
from daemon.length_models.store import VectorStore, cut_short
from daemon.length_models.store_file import from_bytes, to_bytes
from tests.length_models.made import stream, unit

LIVE = ("mean", "features", "mlp", "retrieval", "ranges:100")
VECTOR = unit(*range(1, 9))


def asked(max_tokens: int) -> Asked:
    return Asked(9, max_tokens, stream(1)[0][0].features, VECTOR)


def made(kind: str, store: VectorStore | None = None) -> Predictor:
    predictor = length_predictor(kind, store)
    assert predictor is not None
    return predictor


def test_a_row_is_cut_if_it_has_as_many_tokens_as_it_might() -> None:
    store = VectorStore()
    for max_tokens, num_tokens in ((16, 15), (16, 16), (16, 17), (0, 99)):
        assert Asked(1, max_tokens).cuts(num_tokens) == (max_tokens == 16 and num_tokens >= 16)
        store.add(Asked(1, max_tokens), num_tokens)
    assert cut_short(store.rows).tolist() == [False, True, True, False]


@pytest.mark.parametrize("kind", LIVE)
def test_sixteen_of_sixteen_says_nothing_of_two_thousand(kind: str) -> None:
    """As /v1/completions has it without max_tokens."""
    predictor = made(kind)
    for _ in range(80):
        predictor.observe(asked(16), 16)
    said = predictor.predict(asked(2000))
    assert said.middle >= 200 and said.high >= 2 * said.middle
    assert predictor.predict(asked(16)).middle == 16
    assert predictor.predict(asked(10)).middle == 10


@pytest.mark.parametrize("kind", LIVE)
def test_whole_answers_among_cut_ones_are_what_is_said(kind: str) -> None:
    predictor = made(kind)
    for number in range(100):
        predictor.observe(asked(2000), 400 + number % 3)
        for _ in range(2):
            predictor.observe(asked(16), 16)
    assert predictor.predict(asked(2000)).middle == pytest.approx(400, rel=0.25)
    assert predictor.predict(asked(16)).middle == 16


@pytest.mark.parametrize("kind", LIVE)
def test_those_that_ended_before_the_limit_do_not_speak_for_the_cut(kind: str) -> None:
    """Three in four are cut at 64, the others have 8 tokens: the next has more than 8."""
    predictor = made(kind)
    for number in range(280):
        predictor.observe(asked(64), 8 if number % 4 == 0 else 64)
    assert predictor.predict(asked(2000)).middle >= 30
    assert 30 <= predictor.predict(asked(64)).middle <= 64


@pytest.mark.parametrize("kind", ["features", "mlp", "retrieval"])
def test_limits_that_cut_one_answer_in_four_change_little(kind: str) -> None:
    """A rule is learned as from whole answers."""
    chance = np.random.default_rng(3)
    predictor = made(kind)
    num_cut = 0
    for one, num_tokens in stream(500):
        limited = msgspec.structs.replace(one, max_tokens=int(chance.choice((64, 4096))))
        num_cut += limited.cuts(num_tokens)
        predictor.observe(limited, min(num_tokens, limited.max_tokens))
    assert num_cut > 125
    later = stream(100, seed=1)
    said = np.array([predictor.predict(one).middle for one, _ in later])
    truth = np.array([num_tokens for _, num_tokens in later])
    assert np.mean(np.abs(said - truth) / truth) < 0.35


@pytest.mark.parametrize("kind", LIVE)
def test_a_store_that_is_full_of_cut_answers_says_so_after_a_restart(kind: str) -> None:
    store = VectorStore()
    predictor = made(kind, store)
    for _ in range(80):
        predictor.observe(asked(16), 16)
    restored, fault = from_bytes(to_bytes(store))
    assert not fault
    assert made(kind, restored).predict(asked(2000)).middle >= 200

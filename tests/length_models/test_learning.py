"""What those that learn have in common, and how well each learns a rule that can be learned."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.length_models.calibration import Calibration
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.learned import Learned
from daemon.length_models.prediction import Asked, Prediction, Predictor
from daemon.length_models.registry import length_predictor
from daemon.length_models.store import VectorStore
from daemon.length_models.store_file import from_bytes, to_bytes
from tests.length_models.made import DIM, stream, unit

KINDS = ("features", "mlp", "retrieval", "ranges:100")
WORST = {"features": 0.25, "mlp": 0.25, "retrieval": 0.25, "ranges:100": 0.6}
"""Mean relative error allowed; the noise alone makes 0.16, a range of 100 holds 20 and 60."""


def taught(kind: str, count: int, seed: int = 0, store: VectorStore | None = None) -> Predictor:
    predictor = length_predictor(kind, store)
    assert predictor is not None
    for asked, num_tokens in stream(count, seed):
        guess = predictor.predict(asked).guess
        predictor.observe(msgspec.structs.replace(asked, guess=guess), num_tokens)
    return predictor


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_is_learned(kind: str) -> None:
    predictor = taught(kind, 400)
    later = stream(300, seed=1)
    said = [predictor.predict(asked) for asked, _ in later]
    truth = np.array([num_tokens for _, num_tokens in later])
    middle = np.array([one.middle for one in said])
    assert np.mean(np.abs(middle - truth) / truth) < WORST[kind]
    mean = taught("mean", 400)
    means = np.array([mean.predict(asked).middle for asked, _ in later])
    assert np.abs(middle - truth).mean() < 0.5 * np.abs(means - truth).mean()
    within = np.mean([a.high >= b for a, b in zip(said, truth, strict=True)])
    assert within == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_until_enough_finished_it_is_the_mean(kind: str) -> None:
    mean, predictor = ConditionalMean(), taught(kind, Learned.LEAST - 1)
    for asked, num_tokens in stream(Learned.LEAST - 1):
        mean.observe(asked, num_tokens)
    later = [asked for asked, _ in stream(20, seed=1)]
    assert [predictor.predict(one) for one in later] == [mean.predict(one) for one in later]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_depends_on_what_was_seen_alone(kind: str) -> None:
    later = [asked for asked, _ in stream(30, seed=1)]
    one, other = taught(kind, 200), taught(kind, 200)
    first = [one.predict(asked) for asked in later]
    assert first == [other.predict(asked) for asked in later]
    assert first == [one.predict(asked) for asked in later], "asking changes nothing"
    blind = [msgspec.structs.replace(asked, truth=3, chance=9.0) for asked in later]
    assert first == [one.predict(asked) for asked in blind], "the truth is not looked at"


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_keeps_what_was_learned(kind: str) -> None:
    store = VectorStore()
    taught(kind, 300, store=store)
    restored, fault = from_bytes(to_bytes(store))
    assert not fault
    predictor = length_predictor(kind, restored)
    assert predictor is not None and len(restored) == 300
    later = stream(200, seed=1)
    said = [predictor.predict(asked) for asked, _ in later]
    truth = np.array([num_tokens for _, num_tokens in later])
    middle = np.array([one.middle for one in said])
    assert np.mean(np.abs(middle - truth) / truth) < WORST[kind] + 0.05
    within = np.mean([a.high >= b for a, b in zip(said, truth, strict=True)])
    assert within == pytest.approx(0.9, abs=0.08), "the band is known too"


@pytest.mark.parametrize("kind", KINDS)
def test_requests_without_text_are_predicted_by_their_counts(kind: str) -> None:
    """As in a simulation of lengths alone: longer prompts have longer answers."""
    predictor = length_predictor(kind)
    assert predictor is not None
    for number in range(300):
        num_prompt_tokens = (20, 400)[number % 2]
        predictor.observe(Asked(num_prompt_tokens, 4000), 3 * num_prompt_tokens)
    short, long = predictor.predict(Asked(20, 4000)), predictor.predict(Asked(400, 4000))
    assert short.middle == pytest.approx(60, rel=0.3)
    assert long.middle == pytest.approx(1200, rel=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_of_another_encoder_is_learned_anew(kind: str) -> None:
    predictor = taught(kind, 200)
    longer = unit(*range(1, DIM + 3))
    assert predictor.predict(Asked(10, 4096, vector=longer)).middle >= 1
    for _ in range(50):
        predictor.observe(Asked(10, 4096, vector=longer), 300)
    assert predictor.predict(Asked(10, 4096, vector=longer)).middle == pytest.approx(300, rel=0.3)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), min_size=1, max_size=90),
    st.integers(0, 600),
)
def test_quantiles_are_in_order_and_within_the_limit(
    kind: str, seen: list[tuple[int, int]], max_tokens: int
) -> None:
    predictor = length_predictor(kind)
    assert predictor is not None
    for num_prompt_tokens, num_tokens in seen:
        predictor.observe(Asked(num_prompt_tokens, vector=unit(1.0, num_tokens)), num_tokens)
    said = predictor.predict(Asked(seen[0][0], max_tokens, vector=unit(1.0, 2.0)))
    assert 1 <= said.middle <= said.high
    assert not max_tokens or said.high <= max_tokens


class Told:
    """Says what it is told to say."""

    declared = "told"
    said = 100.0

    def guess(self, asked: Asked) -> float:
        return self.said

    def learn(self) -> None:
        pass


def test_what_was_said_calibrates_and_not_what_would_be_said_by_now() -> None:
    """Guessed at 100, long requests end with 200 when the model would say 10 of them: it says half
    of the truth, and not a twentieth.
    """
    store, model = VectorStore(), Told()
    predictor = Learned(store, model)
    for _ in range(Learned.LEAST):
        predictor.observe(Asked(5, 4000), 100)
    told = Asked(5, 4000, guess=predictor.predict(Asked(5, 4000)).guess)
    model.said = 10.0
    for _ in range(Calibration.LEAST):
        predictor.observe(told, 200)
    assert store.rows["guess"].tolist() == [0] * Learned.LEAST + [100] * Calibration.LEAST
    assert predictor.predict(Asked(5, 4000)) == Prediction(20, 20, guess=10.0)
    assert Learned(store, model).predict(Asked(5, 4000)) == Prediction(20, 20, guess=10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_never_asked_about_teaches_and_calibrates_nothing(kind: str) -> None:
    store = VectorStore()
    predictor = length_predictor(kind, store)
    assert predictor is not None
    for asked, num_tokens in stream(100):
        predictor.observe(asked, num_tokens)
    assert not store.rows["guess"].any()
    said = predictor.predict(stream(1, seed=1)[0][0])
    assert said.middle == round(said.guess), "no factor is known"


def test_what_is_too_old_is_no_longer_counted_on() -> None:
    store = VectorStore(max_age_s=60.0)
    store.advance(0.0)
    predictor = taught("retrieval", 200, store=store)
    store.advance(61.0)
    assert predictor.predict(Asked(10, 4096, vector=unit(1.0, 0.0))).middle >= 1
    assert len(store) == 0

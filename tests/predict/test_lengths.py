"""What the predictors of output length say, learn and refuse."""

import math

import numpy as np
import pytest

from daemon.predict.lengths import (
    ConditionalMean,
    Noisy,
    Oracle,
    PredictorError,
    length_predictor,
)


@pytest.mark.parametrize(
    ("name", "kind", "declared"),
    [
        ("oracle", Oracle, "oracle (no error)"),
        ("noisy:0.5", Noisy, "noisy:0.5 (truth * lognormal error, sigma 0.5)"),
        ("noisy:0", Noisy, "noisy:0 (truth * lognormal error, sigma 0)"),
        (
            "mean",
            ConditionalMean,
            "mean (of finished requests with prompts of the same power of two; error not bounded)",
        ),
    ],
)
def test_each_name_makes_one_that_declares_its_error(
    name: str, kind: type[object], declared: str
) -> None:
    predictor = length_predictor(name)
    assert type(predictor) is kind
    assert predictor is not None and predictor.declared == declared


def test_none_is_none() -> None:
    assert length_predictor("none") is None


@pytest.mark.parametrize("name", ["", "best", "oracle:1", "mean:2", "none:1", "Oracle"])
def test_an_unknown_name_lists_those_there_are(name: str) -> None:
    with pytest.raises(PredictorError, match="choose none, mean, oracle or noisy:SIGMA"):
        length_predictor(name)


@pytest.mark.parametrize("value", ["", "x", "-0.1", "inf", "nan"])
def test_a_spread_must_be_a_number_from_zero_on(value: str) -> None:
    with pytest.raises(PredictorError, match="noisy:SIGMA needs a number from 0 on"):
        length_predictor(f"noisy:{value}")


def test_the_oracle_knows_and_never_learns() -> None:
    oracle = Oracle()
    oracle.observe(10, 1000)
    assert [oracle.predict(10, truth, 2.0) for truth in (1, 7, 900)] == [1, 7, 900]


def test_noise_multiplies_the_truth() -> None:
    """Its logarithms spread by sigma around the truth's; half the predictions are too long."""
    noisy = Noisy(0.4)
    draws = np.random.default_rng(3).standard_normal(20_000)
    logs = np.log([noisy.predict(5, 10_000, float(draw)) for draw in draws])
    assert logs.std() == pytest.approx(0.4, rel=0.02)
    assert np.median(logs) == pytest.approx(math.log(10_000), abs=0.02)
    assert noisy.predict(5, 100, 1.0) == round(100 * math.exp(0.4))
    assert noisy.predict(5, 1, -9.0) == 1, "at least one token"
    assert Noisy(0.0).predict(5, 123, 3.0) == 123


def test_the_mean_is_learned_by_class_of_prompt() -> None:
    mean = ConditionalMean()
    assert mean.predict(100, 5, 0.0) == ConditionalMean.FIRST, "nothing finished yet"
    for _ in range(mean.LEAST - 1):
        mean.observe(100, 40)
    mean.observe(1000, 200)
    everyone = round((40 * (mean.LEAST - 1) + 200) / mean.LEAST)
    assert mean.predict(100, 5, 0.0) == everyone, "its class has too few"
    mean.observe(64, 48)
    assert mean.predict(127, 5, 0.0) == round((40 * (mean.LEAST - 1) + 48) / mean.LEAST)
    assert mean.predict(128, 5, 0.0) == round(
        (40 * (mean.LEAST - 1) + 48 + 200) / (mean.LEAST + 1)
    ), "128 is another power of two"


def test_the_mean_sees_neither_the_truth_nor_the_draw() -> None:
    mean = ConditionalMean()
    for num_tokens in range(1, 40):
        mean.observe(20, num_tokens)
    assert {mean.predict(20, truth, chance) for truth in (1, 999) for chance in (-3.0, 3.0)} == {20}

"""The mean by class of prompt (Aladdin section 4), with the class's own quantiles."""

import numpy as np

from daemon.length_models.calibration import Calibration
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.prediction import Asked, Prediction
from daemon.length_models.store import VectorStore


def said(mean: ConditionalMean, num_prompt_tokens: int) -> int:
    return mean.predict(Asked(num_prompt_tokens)).middle


def test_before_anything_finished_it_says_so_by_its_band() -> None:
    first, doubt = ConditionalMean.FIRST, Calibration.FIRST
    assert ConditionalMean().predict(Asked(100)) == Prediction(first, int(first * doubt))


def test_the_mean_is_learned_by_class_of_prompt() -> None:
    mean = ConditionalMean()
    for _ in range(mean.LEAST - 1):
        mean.observe(Asked(100), 40)
    mean.observe(Asked(1000), 200)
    everyone = round((40 * (mean.LEAST - 1) + 200) / mean.LEAST)
    assert said(mean, 100) == everyone, "its class has too few"
    mean.observe(Asked(64), 48)
    assert said(mean, 127) == round((40 * (mean.LEAST - 1) + 48) / mean.LEAST)
    assert said(mean, 128) == round((40 * (mean.LEAST - 1) + 48 + 200) / (mean.LEAST + 1)), (
        "128 is another power of two"
    )


def test_the_mean_sees_neither_the_truth_nor_the_draw() -> None:
    mean = ConditionalMean()
    for num_tokens in range(1, 40):
        mean.observe(Asked(20), num_tokens)
    seen = {
        mean.predict(Asked(20, truth=truth, chance=chance)).middle
        for truth in (1, 999)
        for chance in (-3.0, 3.0)
    }
    assert seen == {20}


def test_its_quantiles_are_those_of_the_class() -> None:
    mean = ConditionalMean()
    for num_tokens in range(1, 100):
        mean.observe(Asked(20), num_tokens)
        mean.observe(Asked(200), 1000)
    assert mean.predict(Asked(20)) == Prediction(50, 90)


def test_a_limit_bounds_both() -> None:
    mean = ConditionalMean()
    for num_tokens in range(1, 100):
        mean.observe(Asked(20), num_tokens)
    assert mean.predict(Asked(20, max_tokens=30)) == Prediction(30, 30)
    assert mean.predict(Asked(20, max_tokens=5)) == Prediction(5, 5)


def test_the_oldest_of_a_class_are_forgotten() -> None:
    mean = ConditionalMean()
    for num_tokens in [1000] * 10 + [10] * mean.CLASS_WINDOW:
        mean.observe(Asked(20), num_tokens)
    assert said(mean, 20) == 10


def test_what_a_store_remembers_is_known_at_once() -> None:
    store = VectorStore()
    before = ConditionalMean(store)
    for num_tokens in np.random.default_rng(1).integers(1, 500, 100).tolist():
        before.observe(Asked(num_tokens % 90), num_tokens)
    after = ConditionalMean(store)
    for num_prompt_tokens in (1, 7, 40, 80, 5000):
        assert after.predict(Asked(num_prompt_tokens)) == before.predict(Asked(num_prompt_tokens))
    assert len(store) == 100, "knowing is not adding"

"""Predictors by name: what each declares, and what is refused."""

import pytest

from daemon.config.schema import PredictConfig
from daemon.length_models.errors import PredictorError
from daemon.length_models.prediction import Asked
from daemon.length_models.registry import CHOICES, LIVE, VECTOR_KINDS, length_predictor
from daemon.length_models.store import VectorStore

DECLARED = {
    "oracle": "oracle (no error)",
    "noisy:0.5": "noisy:0.5 (truth * lognormal error, sigma 0.5)",
    "noisy:0": "noisy:0 (truth * lognormal error, sigma 0)",
    "mean": "mean (of finished requests with prompts of the same power of two; error not bounded)",
    "stand-in": "stand-in (for features, without text; rank correlation 0.65)",
    "adversary": "adversary (lengths mirrored at 256 tokens: the order is reversed)",
    "ranges": "ranges:200 (classifier of ranges of 200 tokens on embedding and features; error"
    " calibrated on recent answers)",
}


@pytest.mark.parametrize("name", DECLARED)
def test_each_declares_its_error(name: str) -> None:
    predictor = length_predictor(name)
    assert predictor is not None and predictor.declared == DECLARED[name]


@pytest.mark.parametrize("name", ["features", "mlp", "retrieval", "ranges:100", "ranges:400"])
def test_a_declaration_begins_with_the_name(name: str) -> None:
    predictor = length_predictor(name)
    assert predictor is not None and predictor.declared.startswith(f"{name} (")


def test_none_is_none() -> None:
    assert length_predictor("none") is None


@pytest.mark.parametrize("name", LIVE)
def test_the_live_ones_need_no_truth(name: str) -> None:
    predictor = length_predictor(name)
    assert predictor is None or predictor.predict(Asked(10)).middle >= 1
    assert name in CHOICES


def test_the_configured_default_is_a_live_one_and_needs_no_encoder() -> None:
    assert PredictConfig().kind in set(LIVE) - VECTOR_KINDS
    assert set(LIVE) > VECTOR_KINDS


@pytest.mark.parametrize(
    "name", ["", "best", "oracle:1", "mean:2", "mean:", "none:1", "Oracle", "adversary:3"]
)
def test_an_unknown_name_lists_those_there_are(name: str) -> None:
    with pytest.raises(PredictorError, match="choose none, mean, features, mlp, retrieval, ranges"):
        length_predictor(name)


@pytest.mark.parametrize("value", ["", "x", "-0.1", "inf", "nan"])
def test_a_spread_must_be_a_number_from_zero_on(value: str) -> None:
    with pytest.raises(PredictorError, match="noisy:SIGMA needs a number from 0 on"):
        length_predictor(f"noisy:{value}")


@pytest.mark.parametrize("value", ["", "x", "0", "150", "-100"])
def test_a_granularity_is_one_of_the_papers(value: str) -> None:
    with pytest.raises(PredictorError, match="ranges:TOKENS needs one of 100, 200, 400"):
        length_predictor(f"ranges:{value}")


@pytest.mark.parametrize("name", LIVE[1:])
def test_those_that_learn_put_what_they_learn_into_the_store(name: str) -> None:
    store = VectorStore()
    predictor = length_predictor(name, store)
    assert predictor is not None
    predictor.observe(Asked(10), 7)
    assert store.rows["num_tokens"].tolist() == [7]

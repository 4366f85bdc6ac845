"""The sentence encoder, where its package is installed: unit vectors, alike for alike texts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from daemon.config.encoder import encoder_folder
from daemon.protocol.predictor import Ask, Ended
from tests.predictor.child import Child

pytestmark = pytest.mark.skipif(
    encoder_folder() is None, reason="the extra `retrieval` is not installed"
)

TEXTS = [
    "How do I bake bread at home?",
    "What is the best way to make a loaf of bread?",
    "Write a Python function that sorts a list of numbers.",
    "",
    "word " * 2000,
]


def test_vectors_are_of_length_one_and_near_where_texts_are_alike() -> None:
    from daemon.predictor.encoder import DIM, Encoder
    from daemon.predictor.linear import Float32Linear, Int8Linear

    exact = Encoder(Float32Linear).encode(TEXTS)
    encoder = Encoder(Int8Linear)
    for vectors in (exact, encoder.encode(TEXTS)):
        assert vectors.shape == (len(TEXTS), DIM) and vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        cosines = vectors @ vectors.T
        assert cosines[0, 1] > 0.7 > 0.3 > cosines[0, 2]
        assert (vectors * exact).sum(axis=1).min() > 0.98
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.allclose(encoder.encode(TEXTS), alone, atol=1e-3), "company changes nothing"
    assert encoder.encode([]).shape == (0, DIM)


def test_a_text_waits_for_those_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon.predictor.encoder import Encoder
    from daemon.predictor.minilm import Bert

    rows: list[list[int]] = []
    compute = Bert.__call__

    def noted(bert: Bert, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        rows.append(lengths)
        return compute(bert, ids, lengths)

    monkeypatch.setattr(Bert, "__call__", noted)
    vectors = Encoder().each(["a short one"] * 30 + ["word " * 150])
    next(vectors)
    assert [len(lengths) for lengths in rows] == [25], "25 texts of 5 tokens are a row"
    list(vectors)
    assert [len(lengths) for lengths in rows] == [25, 5, 1]


def test_the_process_learns_from_texts_that_are_alike(tmp_path: Path) -> None:
    store = tmp_path / "tiny.lengths"
    with Child(store, "retrieval") as child:
        for request in range(0, 80, 2):
            child.send(Ask(request, f"How do I bake bread, variant {request}?", 9, 1000))
            child.send(Ask(request + 1, f"Write a Python function, variant {request}.", 9, 1000))
            for _ in range(2):
                child.receive()
            child.send(Ended(request, 30))
            child.send(Ended(request + 1, 500))
        assert child.ask(900, "How do I bake bread?").num_tokens < 60
        assert child.ask(901, "Write a Python function.").num_tokens > 300
    assert not child.said
    with Child(store, "retrieval") as child:
        assert child.ask(0, "How do I bake bread?").num_tokens < 60

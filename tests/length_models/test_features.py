"""What the cheap numbers of a text see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.length_models.features import FEATURES, NUM_FEATURES, features


def seen(text: str) -> dict[str, float]:
    return dict(zip(FEATURES, features(text).tolist(), strict=True))


@given(st.text())
def test_any_text_has_finite_numbers(text: str) -> None:
    found = features(text)
    assert found.shape == (NUM_FEATURES,) and found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (found >= 0.0).all()


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("Is it late?", "question mark"),
        ("Who wrote it", "asks who, what, when, where"),
        ("How do planes fly", "asks how, why"),
        ("Fix this:\ndef f(x):\n    return x", "shows code"),
        ("See:\n```\nls\n```", "shows code"),
        ("A Python function that sorts", "asks for code"),
        ("Give me a list of rivers", "asks for a list"),
        ("Explain gravity", "asks for an explanation"),
        ("Tell it step by step", "asks for an explanation"),
        ("A poem on rain", "asks for a story"),
        ("Say it briefly", "asks for brevity"),
        ("Answer with one word", "asks for brevity"),
        ("Translate into French: hello", "asks for another wording"),
        ("12 * 7", "reckons"),
        ("in 50 words", "states an amount"),
        ("seven short ideas", "states an amount"),
    ],
)
def test_a_flag_is_raised_by_its_text_and_by_no_plain_one(text: str, flag: str) -> None:
    assert seen(text)[flag] == 1.0
    assert seen("The old house stood near a river.")[flag] == 0.0


def test_an_amount_is_in_tokens() -> None:
    amounts = [
        seen(text)["amount"]
        for text in ("in 50 words", "in 200 words", "two paragraphs", "10 pages", "hello")
    ]
    words, more_words, paragraphs, pages, nothing = np.expm1(3.0 * np.array(amounts))
    assert words == pytest.approx(65.0, rel=1e-3)
    assert more_words == pytest.approx(4 * words, rel=1e-3)
    assert (paragraphs, pages, nothing) == pytest.approx((200.0, 6000.0, 0.0), rel=1e-3)


def test_a_long_text_is_looked_at_from_both_ends() -> None:
    middle = "The old house stood near a river. " * 3000
    assert seen("Summarize this: " + middle)["asks for brevity"] == 1.0
    assert seen(middle + "Translate this.")["asks for another wording"] == 1.0
    whole = seen(middle)
    assert whole["words"] == pytest.approx(np.log1p(len(middle.split())) / 3.0, rel=0.01)
    assert whole["characters"] == pytest.approx(np.log1p(len(middle)) / 4.0)


def test_numbers_stay_small() -> None:
    texts = (
        "Hi",
        "What is 7 * 8? One word only.",
        "Explain tea. " * 500,
        "99 pages, 1, 2, 3\n" * 9,
    )
    assert max(float(features(text).max()) for text in texts) < 4.0

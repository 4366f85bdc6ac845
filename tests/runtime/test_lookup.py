"""Prompt lookup: a draft is what followed the longest stretch that the newest tokens repeat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol.worker import Reply
from daemon.runtime.lookup import GROWTH, LEAST_MATCH, MOST_MATCH, MOST_TOKENS, draft, offers
from daemon.runtime.token_store import TokenStore
from daemon.state.request import sequence_id
from daemon.wire.columns import int32
from tests.runtime.ends import generate


def naive(tokens: list[int], most: int) -> list[int]:
    """The same, a stretch at a time."""
    for length in range(min(MOST_MATCH, len(tokens) - 1), LEAST_MATCH - 1, -1):
        for end in range(len(tokens) - 2, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == tokens[-length:]:
                period, most = tokens[end + 1 :], min(most, GROWTH * (length - 1))
                return [period[i % len(period)] for i in range(most)]
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9))
def test_it_is_the_longest_and_latest_stretch(tokens: list[int], most: int) -> None:
    found = draft(int32(tokens), most)
    assert found.tolist() == naive(tokens, most) and found.dtype == "i4"


def test_a_quote_goes_on_as_its_source() -> None:
    source = list(range(100, 140))
    for length, count in ((2, 2), (3, 4), (8, MOST_TOKENS), (20, MOST_TOKENS)):
        found = draft(int32([*source, 7, *source[5 : 5 + length]])).tolist()
        assert found == [*source, 7, 105, 106][5 + length :][:count]
    assert draft(int32([*source, 7, 105])).size == 0, "one token alone says too little"
    assert draft(int32([9, 9, 9])).tolist() == [9] * 2
    assert draft(int32([9] * 9)).tolist() == [9] * MOST_TOKENS
    assert draft(int32()).size == draft(int32([1])).size == draft(int32([1, 1])).size == 0


def test_offers_are_behind_what_each_row_drew() -> None:
    store, ids = TokenStore(4), [sequence_id(number, 0) for number in range(4)]
    for number in range(3):
        grammar = "start: /a*/" if number == 2 else ""
        store.add(number, generate(number, [1, 2, 3, 4, 5, 1], grammar=grammar))
    reasons = np.zeros(4, np.uint8)
    counts = int32([2, 1, 2, 1])
    reply = Reply(1, int32([2, 3, 9, 2, 3, 8]), reasons, 0.0, 0.0, counts=counts)
    found = offers(store, np.array(ids, np.int64), reply)
    assert found.tolist() == [4, 0, 0, 0], "new, bound by a grammar, and not known"
    store.append(np.array([ids[0]] * 2), int32([2, 3]))
    assert store.drafted(ids[0], 8, 3).tolist() == [4, 5, 1]
    with pytest.raises(LookupError, match="no 2 tokens were drafted at 7"):
        store.drafted(ids[0], 7, 2)
    reasons[0] = 1
    assert offers(store, np.array(ids, np.int64), reply).size == 0, "one that ends drafts nothing"


def test_looking_writes_nothing() -> None:
    prompt = int32([1, 2, 1, 2])
    store, one = TokenStore(4), sequence_id(0, 0)
    store.add(0, generate(0, prompt.tolist()))
    assert store.look(one, int32([1])) and store.slice(one, 0, 4).tolist() == [1, 2, 1, 2]
    with pytest.raises(LookupError):
        store.slice(one, 0, 5)
    store.append(np.array([one]), int32([7]))
    assert store.slice(one, 3, 2).tolist() == [2, 7]

"""Token ids of living sequences: any stretch of prompt and answer, and nothing of the ended."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.hashing import chain_hashes, salt_digest
from daemon.runtime.token_store import TokenStore
from daemon.state.request import sequence_id
from daemon.wire.columns import int32
from tests.runtime.ends import generate


def store_of(
    prompt: list[int], outputs: list[int], seed: int = 0, repetition_penalty: float = 1.0
) -> TokenStore:
    store = TokenStore(4)
    store.add(1, generate(9, prompt, n=2, seed=seed, repetition_penalty=repetition_penalty))
    for token in outputs:
        store.append(int32([sequence_id(1, 1)]).astype("i8"), int32([token]))
    return store


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=12),
    st.lists(st.integers(0, 99), max_size=12),
    st.integers(0, 23),
    st.integers(0, 23),
)
def test_a_slice_is_one_of_prompt_and_outputs(
    prompt: list[int], outputs: list[int], start: int, count: int
) -> None:
    store = store_of(prompt, outputs)
    tokens = prompt + outputs
    if start + count <= len(tokens):
        piece = store.slice(sequence_id(1, 1), start, count)
        assert piece.tolist() == tokens[start : start + count] and piece.dtype == "i4"
    elif count:
        with pytest.raises(LookupError):
            store.slice(sequence_id(1, 1), start, count)


def test_streams_differ_by_seed_and_do_not_mix() -> None:
    store = store_of([1, 2], [3, 4], seed=5)
    first, second = (store.join(0, sequence_id(1, index)) for index in range(2))
    assert first.sampling.seed == 5 and second.sampling.seed not in (0, 5)
    assert store.slice(sequence_id(1, 0), 0, 2).tolist() == [1, 2]
    with pytest.raises(LookupError, match="not known yet"):
        store.slice(sequence_id(1, 0), 0, 3)


def test_every_seed_fits_the_wire() -> None:
    store = TokenStore(4)
    store.add(0, generate(0, [1], n=128, seed=(1 << 63) - 1))
    seeds = {store.join(0, sequence_id(0, index)).sampling.seed for index in range(128)}
    assert len(seeds) == 128
    assert min(seeds) >= 0 and max(seeds) < 1 << 63


def test_history_is_brought_only_where_it_is_needed() -> None:
    assert store_of([1, 2], [3]).join(4, sequence_id(1, 1)).history.size == 0
    join = store_of([1, 2], [3], repetition_penalty=1.1).join(4, sequence_id(1, 1))
    assert (join.slot, join.sequence) == (4, sequence_id(1, 1))
    assert join.num_prompt_tokens == 2
    assert join.history.tolist() == [1, 2, 3]
    told = {"grammar": 'start: "a"'}, {"prompt_logprobs": 0}
    for fields in told:
        store = TokenStore(4)
        store.add(1, generate(9, [1, 2], **fields))  # type: ignore[arg-type]
        assert store.join(4, sequence_id(1, 0)).history.tolist() == [1, 2]


def test_what_is_dropped_is_gone() -> None:
    store = store_of([1], [])
    assert len(store._sequences) == 2 and sequence_id(1, 0) in store._sequences
    store.drop(sequence_id(1, 0))
    assert len(store._sequences) == 1 and sequence_id(1, 0) not in store._sequences
    with pytest.raises(KeyError):
        store.drop(sequence_id(1, 0))
    with pytest.raises(KeyError):
        store.slice(sequence_id(1, 0), 0, 1)
    store.add(2, generate(0, [1], n=3))
    store.drop_request(2, 3)
    assert len(store._sequences) == 1


@pytest.mark.parametrize("num_prompt", [2, 4, 9])
@pytest.mark.parametrize("a_time", [1, 3, 7])
def test_blocks_are_hashed_as_answers_fill_them(num_prompt: int, a_time: int) -> None:
    """Also several at a time, and from a salt where the prompt fills none."""
    salt, one = salt_digest("alice"), sequence_id(1, 0)
    prompt, answer = list(range(num_prompt)), list(range(50, 71))
    store = TokenStore(4)
    asked = generate(9, prompt)
    hashes = chain_hashes(prompt, 4, salt)
    store.add(1, msgspec.structs.replace(asked, hashes=hashes, salt=salt))
    found: list[tuple[int, int]] = []
    for begin in range(0, len(answer), a_time):
        news = answer[begin : begin + a_time]
        store.append(np.array([one] * len(news)), int32(news))
        blocks = store.hash_filled()
        found += zip(blocks.sequences.tolist(), blocks.at.tolist(), strict=True)
        hashes += blocks.hashes
    assert hashes == chain_hashes([*prompt, *answer], 4, salt)
    assert found == [(one, at) for at in range(num_prompt // 4, len(hashes) // 16)]


def test_no_block_is_hashed_of_what_ended_or_has_a_prompt_without_hashes() -> None:
    store = TokenStore(4)
    for request in (1, 2):
        store.add(request, msgspec.structs.replace(generate(9, [1] * 5), hashes=b""))
    store.add(3, generate(9, [1] * 5))
    store.append(np.array([sequence_id(request, 0) for request in (1, 2, 3)] * 3), int32([2] * 9))
    store.drop(sequence_id(3, 0))
    assert store.hash_filled().sequences.size == 0

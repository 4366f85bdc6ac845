"""A store's bytes: back as they were; damaged or foreign ones are named and cost nothing more."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.length_models import store_file
from daemon.length_models.features import features
from daemon.length_models.prediction import Asked
from daemon.length_models.store import VectorStore
from daemon.length_models.store_file import MAGIC, from_bytes, packed, to_bytes, unpacked
from tests.length_models.made import stream, unit


def filled(count: int = 40) -> VectorStore:
    store = VectorStore()
    store.signed_by("somebody")
    for number, (asked, num_tokens) in enumerate(stream(count)):
        store.advance(1000.0 + number)
        store.add(msgspec.structs.replace(asked, guess=number), num_tokens)
    return store


def with_column(name: str, value: float) -> bytes:
    """Rows of which the last has this value."""
    rows = filled().rows.copy()
    rows[name][-1] = value
    return rows.tobytes()


def forged(**changes: object) -> bytes:
    """Bytes with the right checksum and a wrong content."""
    data = to_bytes(filled())
    head = len(MAGIC) + 16
    content = msgspec.msgpack.decode(data[head:], type=store_file._Content)
    return signed(msgspec.msgpack.encode(msgspec.structs.replace(content, **changes)))


def signed(payload: bytes) -> bytes:
    """A file of this content."""
    return MAGIC + store_file._checksum(payload) + payload


def test_a_store_comes_back_as_it_was() -> None:
    store = filled()
    again, fault = from_bytes(to_bytes(store))
    assert fault == ""
    assert np.array_equal(again.rows, store.rows)
    assert again.guesser == "somebody"
    assert np.abs(again.vectors - store.vectors).max() < 0.01
    assert (again.vectors * store.vectors).sum(axis=1).min() > 0.9999
    assert to_bytes(again) == to_bytes(store), "a second time changes nothing"


def test_it_goes_on_where_it_was() -> None:
    again, _ = from_bytes(to_bytes(filled()), max_rows=30, max_age_s=20.0)
    assert len(again) == 30
    again.advance(1039.0)
    assert len(again) == 21
    again.add(Asked(1, vector=unit(*range(1, 9))), 77)
    assert again.rows["num_tokens"][-1] == 77
    assert again.rows["time_s"][-1] == 1039.0


@pytest.mark.parametrize("store", [VectorStore(), VectorStore(1)])
def test_an_empty_store_is_a_store(store: VectorStore) -> None:
    again, fault = from_bytes(to_bytes(store))
    assert (len(again), fault) == (0, "")
    again.add(Asked(1), 1)
    assert len(again) == 1


def test_no_text_is_in_it() -> None:
    store = VectorStore()
    text = "Write a poem about a very particular walrus"
    store.add(Asked(9, 100, features(text), unit(1.0, 2.0)), 50)
    data = to_bytes(store)
    assert not any(word.encode() in data for word in text.split() if len(word) > 3)


@settings(max_examples=200, deadline=None)
@given(st.integers(0), st.integers(0, 255))
def test_one_wrong_byte_is_found(place: int, byte: int) -> None:
    data = bytearray(to_bytes(filled(5)))
    place %= len(data)
    wrong = data[place] != byte
    data[place] = byte
    store, fault = from_bytes(bytes(data))
    assert (len(store) == 0) == bool(fault) == wrong


@given(st.binary(max_size=300))
def test_foreign_bytes_are_no_store(data: bytes) -> None:
    if not data.startswith(MAGIC):
        store, fault = from_bytes(data)
        assert len(store) == 0 and "not a store" in fault
    store, fault = from_bytes(MAGIC + data)
    assert len(store) == 0 and "checksum" in fault


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_no_store(share: float) -> None:
    data = to_bytes(filled())
    store, fault = from_bytes(data[: int(share * len(data))])
    assert len(store) == 0 and fault


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "of format 2"),
        ({"row_bytes": 4}, "of format 1; this version"),
        ({"dim": 7}, "different lengths"),
        ({"dim": -1}, "different lengths"),
        ({"rows": b"123"}, "different lengths"),
        ({"rows": b"\xff" * filled().rows.nbytes}, "numbers that no request has"),
        *(
            ({"rows": with_column(name, -1)}, "numbers that no request has")
            for name in ("num_prompt_tokens", "max_tokens", "num_tokens", "guess", "time_s")
        ),
        ({"guesser": 5}, "not as this version writes it"),
    ],
)
def test_what_another_version_wrote_is_not_believed(changes: dict[str, object], said: str) -> None:
    store, fault = from_bytes(forged(**changes))
    assert len(store) == 0 and said in fault


def test_a_name_that_is_no_text_is_not_believed() -> None:
    payload = forged(guesser="somebody")[len(MAGIC) + 16 :]
    store, fault = from_bytes(signed(payload.replace(b"somebody", b"\xff" * 8)))
    assert len(store) == 0 and "not as this version writes it" in fault


def test_packing_keeps_directions() -> None:
    chance = np.random.default_rng(6)
    vectors = np.array([unit(*chance.normal(size=384)) for _ in range(50)])
    again = unpacked(packed(vectors))
    assert (again * vectors).sum(axis=1).min() > 0.9995
    assert np.abs(again @ again.T - vectors @ vectors.T).max() < 0.005
    assert np.array_equal(packed(again), packed(vectors))
    assert np.array_equal(unpacked(packed(np.zeros((2, 5), np.float32))), np.zeros((2, 5)))
    assert unpacked(packed(np.zeros((3, 0), np.float32))).shape == (3, 0)

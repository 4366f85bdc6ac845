"""Columns survive the wire bit by bit, and what is no column is refused as a bad message."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from daemon.wire.columns import Column, all_true, any_true, decoder, encoder, int32

DTYPES = ("i4", "i8", "u1", "f4")


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    before: str
    column: Column
    after: int


ENCODER, DECODER = encoder(), decoder(Message)


@given(
    st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 60))),
    st.text(max_size=9),
)
def test_a_column_comes_back_as_it_was(column: Column, text: str) -> None:
    message = DECODER.decode(ENCODER.encode(Message(text, column, 7)))
    assert message.column.dtype == column.dtype
    assert message.column.tobytes() == column.tobytes()
    assert (message.before, message.after) == (text, 7)
    assert not message.column.flags.writeable


def test_a_strided_column_is_sent_by_value() -> None:
    message = DECODER.decode(ENCODER.encode(Message("", np.arange(10, dtype=np.int32)[::3], 0)))
    assert message.column.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("column", [np.zeros(2, bool), np.zeros(2, ">i4"), np.zeros(2), object()])
def test_what_is_no_column_cannot_be_sent(column: Any) -> None:
    with pytest.raises(NotImplementedError, match="cannot send"):
        ENCODER.encode(Message("", column, 0))


@pytest.mark.parametrize(
    "value",
    [
        msgspec.msgpack.Ext(1, b"abc"),
        msgspec.msgpack.Ext(2, bytes(12)),
        msgspec.msgpack.Ext(4, bytes(1)),
        msgspec.msgpack.Ext(9, bytes(4)),
        msgspec.msgpack.Ext(-1, bytes(4)),
        b"\0\0\0\0",
        5,
        None,
        [1, 2],
        "1",
    ],
)
def test_bad_columns_are_validation_errors(value: Any) -> None:
    payload = msgspec.msgpack.encode(["Message", "", value, 0])
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(payload)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_decoding_error(data: bytes) -> None:
    whole = ENCODER.encode(Message("x", int32([1, 2, 3]), 4))
    for payload in (data, whole[: len(data)], whole[: len(data) % len(whole)] + data):
        try:
            DECODER.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # the latter: of a broken string
            continue


@pytest.mark.parametrize("flags", [[], [0], [1], [0, 1, 0], [1, 1]])
def test_flags_are_asked_as_numpy_asks_them(flags: list[int]) -> None:
    for column in (np.array(flags, np.bool_), np.array(flags, np.uint8)):
        assert any_true(column) == column.any()
        assert all_true(column) == column.all()

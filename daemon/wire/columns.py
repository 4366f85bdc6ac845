"""Columns on the wire: numpy arrays inside msgspec structs, self-describing by their dtype."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Slots = npt.NDArray[np.intp]
"""Indices as numpy takes them at once: gathering by int32 costs three times as much."""

Blocks = Slots
"""Block numbers, for the same reason; int32 where they go to a worker."""

Column = np.ndarray
"""The field type of a column in a struct; its dtype is stated in the field's comment."""

ZERO, ONE = np.array(0, np.int32), np.array(1, np.int32)
"""Constants for columns: numpy takes half as long with these as with Python's numbers."""

_DTYPE_BY_CODE: dict[int, np.dtype[Any]] = {
    code: np.dtype(name) for code, name in ((1, "i4"), (2, "i8"), (3, "u1"), (4, "f4"))
}
_CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}


def _to_wire(value: Any) -> msgspec.msgpack.Ext:
    """Encode a numpy array as one msgpack extension whose code names the dtype."""
    if isinstance(value, np.ndarray) and value.dtype in _CODE_BY_DTYPE:
        return msgspec.msgpack.Ext(_CODE_BY_DTYPE[value.dtype], value.tobytes())
    raise NotImplementedError(f"cannot send {type(value).__name__} {getattr(value, 'dtype', '')}")


def _from_wire(code: int, data: memoryview) -> Column:
    """The read-only array of shape [n] that `_to_wire` sent."""
    if code not in _DTYPE_BY_CODE:
        raise msgspec.ValidationError(f"unknown column type {code}")
    dtype = _DTYPE_BY_CODE[code]
    if len(data) % dtype.itemsize:
        raise msgspec.ValidationError(f"a column of {dtype} cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype)


def _is_column(expected: type, value: Any) -> Any:
    if isinstance(value, expected):
        return value
    # msgspec makes a ValidationError of a TypeError, and of nothing else that could be raised here.
    raise TypeError(f"expected a column, got {type(value).__name__}")


def encoder() -> msgspec.msgpack.Encoder:
    """A msgpack encoder that understands columns."""
    return msgspec.msgpack.Encoder(enc_hook=_to_wire)


def decoder(message: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A msgpack decoder of `message` (a struct, or a union of tagged ones) with columns."""
    return msgspec.msgpack.Decoder(message, ext_hook=_from_wire, dec_hook=_is_column)


def no_cells() -> UInt8:
    """An empty column of small numbers."""
    return np.zeros(0, np.uint8)


def any_true(flags: Bools | UInt8) -> bool:
    """Whether one of these flags (true or false, 1 or 0) is set; numpy's `any` takes ten times as
    long.
    """
    return 1 in flags.tobytes()


def all_true(flags: Bools | UInt8) -> bool:
    """Whether all of these flags are set."""
    return 0 not in flags.tobytes()


def int32(values: Any = ()) -> Int32:
    """A column of 32-bit integers."""
    return np.asarray(values, dtype=np.int32)


def int64(values: Any = ()) -> Int64:
    """A column of 64-bit integers."""
    return np.asarray(values, dtype=np.int64)

"""A store as bytes and back, with a format and a checksum against foreign or damaged bytes."""

import hashlib
import math

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.length_models.prediction import Float32
from daemon.length_models.store import ROW, Rows, VectorStore

MAGIC = b"llmd lengths\n"
FORMAT = 1
"""The format of the bytes after the checksum; raise it when a row or a feature changes."""

_CHECKSUM_BYTES = 16
_LARGEST_DIM = 1 << 16
_COUNTS = ("num_prompt_tokens", "max_tokens", "num_tokens", "guess")


Int8 = npt.NDArray[np.int8]


def packed(vectors: Float32) -> Int8:
    """[N, D] int8: each vector scaled so that its largest component becomes 127 (or -127)."""
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    whole: Int8 = np.rint(vectors * (127.0 / np.where(largest, largest, 1.0))).astype(np.int8)
    return whole


def unpacked(vectors: Int8) -> Float32:
    """[N, D]: vectors of length 1; one of zeros alone stays so. Packing these gives the same."""
    wide: Float32 = vectors.astype(np.float32)
    wide /= np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1.0)
    return wide


class _Content(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a store."""

    format: int
    row_bytes: int
    guesser: str
    dim: int
    rows: bytes
    vectors: bytes  # int8 [N, D]: see `packed`


class _FaultError(ValueError):
    """Why bytes are not a store."""


def to_bytes(store: VectorStore) -> bytes:
    """The store as bytes; vectors take one byte per component."""
    content = _Content(
        format=FORMAT,
        row_bytes=ROW.itemsize,
        guesser=store.guesser,
        dim=store.dim,
        rows=store.rows.tobytes(),
        vectors=packed(store.vectors).tobytes(),
    )
    payload = msgspec.msgpack.encode(content)
    return MAGIC + _checksum(payload) + payload


def from_bytes(
    data: bytes, max_rows: int = 20_000, max_age_s: float = math.inf
) -> tuple[VectorStore, str]:
    """The store that `to_bytes` wrote, and "". For foreign or damaged bytes, or another version's:
    an empty store, and the fault in a sentence. Raises nothing.
    """
    store = VectorStore(max_rows, max_age_s)
    try:
        content, rows, vectors = _decoded(data)
    except _FaultError as fault:
        return store, str(fault)
    store.fill(rows, vectors)
    store.guesser = content.guesser
    return store, ""


def _decoded(data: bytes) -> tuple[_Content, Rows, Float32]:
    head = len(MAGIC) + _CHECKSUM_BYTES
    if data[: len(MAGIC)] != MAGIC:
        raise _FaultError("not a store of answer lengths: it begins with other bytes")
    payload = data[head:]
    if data[len(MAGIC) : head] != _checksum(payload):
        raise _FaultError("damaged: the checksum does not fit its content")
    try:
        content = msgspec.msgpack.decode(payload, type=_Content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _FaultError(f"not as this version writes it: {error}") from None
    if content.format != FORMAT or content.row_bytes != ROW.itemsize:
        raise _FaultError(f"of format {content.format}; this version reads {FORMAT}")
    return content, *_arrays(content)


def _arrays(content: _Content) -> tuple[Rows, Float32]:
    count, rest = divmod(len(content.rows), ROW.itemsize)
    fits = 0 <= content.dim <= _LARGEST_DIM and len(content.vectors) == count * content.dim
    if rest or not fits:
        raise _FaultError("damaged: its columns have different lengths")
    rows: Rows = np.frombuffer(content.rows, ROW)
    sound = (
        np.isfinite(rows["time_s"]).all()
        and (np.diff(rows["time_s"]) >= 0.0).all()
        and all((rows[name] >= 0).all() for name in _COUNTS)
        and np.isfinite(rows["features"]).all()
    )
    if not sound:
        raise _FaultError("damaged: it has numbers that no request has")
    vectors = np.frombuffer(content.vectors, np.int8).reshape(count, content.dim)
    return rows, unpacked(vectors)


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest()

"""Columns packed for one copy come out as they went in."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daemon.engine.batch.upload import pack, unpack, upload, upload_all

COLUMN = hnp.arrays(
    dtype=st.sampled_from([np.int32, np.int64, np.uint8, np.float32, np.float64]),
    shape=hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9),
    elements={"allow_nan": False},
)


@given(st.lists(COLUMN, max_size=6))
def test_packed_and_unpacked(columns: list[np.ndarray[Any, Any]]) -> None:
    packed = torch.zeros(sum(-(-column.nbytes // 16) * 16 for column in columns), dtype=torch.uint8)
    pack(columns, packed)
    parts = unpack(columns, packed)
    for part, column in zip(parts, columns, strict=True):
        assert part.shape == column.shape
        assert np.array_equal(part.numpy(), column)
        assert part.storage_offset() * part.element_size() % 16 == 0


def test_columns_that_lie_apart() -> None:
    wide = np.arange(24, dtype=np.int32).reshape(4, 6)
    column = wide[::2, 1:4]
    packed = torch.zeros(32, dtype=torch.uint8)
    pack([column], packed)
    assert unpack([column], packed)[0].tolist() == column.tolist()


def test_a_cpu_needs_no_copy() -> None:
    column = np.arange(5)
    (one,) = upload_all([column], torch.device("cpu"))
    column[0] = 9
    assert one.tolist() == [9, 1, 2, 3, 4]
    assert upload(column, torch.device("cpu")).tolist() == [9, 1, 2, 3, 4]

"""Numbers of quantised weights, bit for bit those of the formats' own references."""

import gguf
import numpy as np
import pytest
import torch

from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS, group_size
from tests.engine.quantised.random_blocks import random_blocks

OF_GGUF = [name for name in FORMATS if "/" not in name]
ROWS, COLUMNS = 6, 512


def _random_blocks(name: str, seed: int) -> np.ndarray:
    return random_blocks(name, ROWS, COLUMNS, seed)


@pytest.mark.parametrize("name", OF_GGUF)
def test_sizes_are_those_of_gguf(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    assert gguf.GGML_QUANT_SIZES[kind] == (FORMATS[name].block_len, FORMATS[name].block_bytes)


@pytest.mark.parametrize("name", OF_GGUF)
@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_gguf(name: str, seed: int) -> None:
    data = _random_blocks(name, seed)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    numbers = unpack(FORMATS[name], torch.from_numpy(data)).numpy()
    np.testing.assert_array_equal(numbers.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("size", [128, 64, 32])
def test_groups_are_a_scale_times_a_number_less_its_zero(size: int) -> None:
    rng = np.random.default_rng(size)
    scales = rng.normal(0, 0.1, (ROWS, 1)).astype(np.float32)
    zeros = rng.integers(0, 16, (ROWS, 1)).astype(np.float32)
    numbers = rng.integers(0, 16, (ROWS, size)).astype(np.uint8)
    low, high = np.split(numbers, 2, 1)
    head = np.concatenate((scales, zeros), 1).view(np.uint8)
    data = np.concatenate((head, low | high << 4), 1)
    found = unpack(FORMATS[f"int4/{size}"], torch.from_numpy(data)).numpy()
    np.testing.assert_array_equal(found, scales * (numbers.astype(np.float32) - zeros))
    data = np.concatenate((head, numbers), 1)
    found = unpack(FORMATS[f"int8/{size}"], torch.from_numpy(data)).numpy()
    np.testing.assert_array_equal(found, scales * (numbers.astype(np.float32) - zeros))


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole blocks of Q4_K"):
        FORMATS["Q4_K"].row_bytes(128)
    with pytest.raises(ValueError, match="no whole blocks"):
        group_size(80, 16)
    assert group_size(4096, 4096) == 128
    assert group_size(96, 32) == 32


def test_columns_in_another_order_come_back_to_their_places() -> None:
    data = torch.from_numpy(_random_blocks("Q8_0", 1))
    plain = QuantisedWeight(FORMATS["Q8_0"], data, COLUMNS)
    order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(0)).int()
    weight = QuantisedWeight(FORMATS["Q8_0"], data, COLUMNS, order)
    states = torch.randn(COLUMNS)
    torch.testing.assert_close(weight.numbers() @ states, plain.numbers() @ states[order.long()])

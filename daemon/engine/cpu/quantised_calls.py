"""Writes the calls of the kernels over weights in blocks; their tensors must outlive the run."""

from dataclasses import dataclass
from typing import Any

import torch

from daemon.engine.cpu import matrix_kernels, pair_kernels, quantised_kernels, rounded_kernels
from daemon.engine.cpu.dots import BFLOAT16, FLOAT32
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.matrix_dots import MATRIX
from daemon.engine.cpu.quantised_kernels import COLUMNS_AT_ONCE, ROWS_AT_ONCE
from daemon.engine.cpu.team import Call
from daemon.engine.quantised.weight import QuantisedWeight

_TARGETS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


@dataclass(frozen=True, slots=True)
class Columns:
    """A product's destination: columns of `output` [T, all columns] from `first` on; their bias."""

    output: torch.Tensor
    first: int
    bias: torch.Tensor | None

    def arguments(self) -> tuple[int, int, int]:
        """Addresses of output and bias, the row stride between them."""
        bias = 0 if self.bias is None else self.bias.data_ptr() + 4 * self.first
        return self.output.data_ptr() + 4 * self.first, self.output.stride(0), bias


def floats_singly(weight: QuantisedWeight, states: torch.Tensor, columns: Columns) -> Call:
    """Product of `states` [T, K], dense, exact, token by token."""
    return _product(quantised_kernels.floats_singly, weight, states, states.shape[0], columns)


def floats_together(weight: QuantisedWeight, states: torch.Tensor, columns: Columns) -> Call:
    """Product of `states` [T, K], dense, exact, all tokens at once.

    The states are in the order of pairs where the weight `takes_pairs`.
    """
    kernel: Any = quantised_kernels.floats_together
    if takes_pairs(weight):
        kernel = _of_pairs
    return _product(kernel, weight, states, states.shape[0], columns)


def takes_pairs(weight: QuantisedWeight) -> bool:
    """Whether the states of all tokens at once are multiplied in the order of pairs."""
    return weight.format.name == "BF16"


def _of_pairs(_name: str) -> Any:
    return pair_kernels.floats_together()


def split(states: torch.Tensor, output: torch.Tensor) -> Call:
    """`output` [T, K]: `states` [T, K], dense, in the order of pairs."""
    count, width = states.shape
    address = pair_kernels.split().address
    return count, BY_ADDRESS, address, states.data_ptr(), width, output.data_ptr()


def record_bytes(count: int, columns: int, lanes: int) -> int:
    """Bytes of the records of T tokens of K numbers, `lanes` (1, or of `LANES`) in each."""
    return -(-count // lanes) * lanes * (columns + columns // 8 + columns // 4)


def rounded(states: torch.Tensor, records: torch.Tensor, lanes: int) -> Call:
    """Rounds `states` [T, K], dense, into `records`: `record_bytes`, of the last zeros at first."""
    address = rounded_kernels.rounded().address
    count, width = states.shape
    places = states.data_ptr(), width, records.data_ptr()
    return count, BY_ADDRESS, address, *places, lanes, 0, 0


def pair_record_bytes(count: int, columns: int) -> int:
    """Bytes of the records of T tokens of K numbers in bfloat16, `MATRIX` tokens in each."""
    return 2 * -(-count // MATRIX) * MATRIX * columns


def packed(states: torch.Tensor, records: torch.Tensor) -> Call:
    """Rounds `states` [T, K], dense, to bfloat16 in records of `pair_record_bytes`."""
    address = matrix_kernels.packed().address
    count, width = states.shape
    places = states.data_ptr(), width, records.data_ptr()
    return -(-count // MATRIX), BY_ADDRESS, address, *places, count


def matrices(weight: QuantisedWeight, records: torch.Tensor, count: int, columns: Columns) -> Call:
    """Product of the records of T tokens that `packed` made."""
    return *_product(matrix_kernels.matrices, weight, records, count, columns), MATRIX


def rounded_singly(
    weight: QuantisedWeight, records: torch.Tensor, count: int, columns: Columns
) -> Call:
    """Product of the records of T tokens, one in each."""
    return _product(rounded_kernels.rounded_singly, weight, records, count, columns)


def rounded_together(
    weight: QuantisedWeight,
    records: torch.Tensor,
    count: int,
    columns: Columns,
    lanes: int,
) -> Call:
    """Product of the records of T tokens, several in each."""
    kernel = rounded_kernels.rounded_together
    return *_product(kernel, weight, records, count, columns), lanes


def reordered(states: torch.Tensor, order: torch.Tensor, output: torch.Tensor) -> Call:
    """`output` [T, K] of `states` [T, K], dense: column k is column order[k] of the states."""
    count, width = states.shape
    address = quantised_kernels.reordered().address
    places = states.data_ptr(), width, order.data_ptr(), output.data_ptr()
    return count, BY_ADDRESS, address, *places


def unpacked(
    weight: QuantisedWeight,
    rows: range,
    output: torch.Tensor,
    indices: torch.Tensor | None = None,
) -> Call:
    """Numbers of some rows, in the order of the blocks, into `output` float32 or bfloat16 [R, K].

    With `indices` int32 [R], of these rows behind the first of `rows`.
    """
    kernel = quantised_kernels.unpacked(weight.format.name, _TARGETS[output.dtype])
    row_bytes = weight.data.shape[1]
    return (
        -(-len(rows) // ROWS_AT_ONCE),
        BY_ADDRESS,
        kernel.address,
        weight.data.data_ptr() + rows.start * row_bytes,
        row_bytes,
        len(rows),
        weight.columns,
        0 if indices is None else indices.data_ptr(),
        output.data_ptr(),
    )


def _product(
    kernel: Any, weight: QuantisedWeight, states: torch.Tensor, count: int, columns: Columns
) -> Call:
    output, stride, bias = columns.arguments()
    data = weight.data
    rows, row_bytes = data.shape
    return (
        -(-rows // COLUMNS_AT_ONCE),
        BY_ADDRESS,
        kernel(weight.format.name).address,
        data.data_ptr(),
        row_bytes,
        rows,
        weight.columns,
        states.data_ptr(),
        count,
        output,
        stride,
        bias,
    )

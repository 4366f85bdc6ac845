"""Writes the calls of recurrent layers; their arrays must outlive the run."""

from dataclasses import dataclass

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import recurrent_kernels as kernels
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.team import Call
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.state_places import StatePlaces
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan
from daemon.memory.state_layout import CONV, SSM
from daemon.wire.columns import Int64

_LANES = (32, 16, 8, 4, 2, 1)


class StateRows:
    """The rows of a step as kernels take them: B rows, each with tokens that follow each other."""

    def __init__(self, cache: PagedKV, most_rows: int, places: StatePlaces) -> None:
        self.places = places
        self._pages = np.zeros((most_rows, cache.state_pages), np.int32)
        self._starts, self._firsts, self._counts = np.zeros((3, most_rows), np.int32)
        columns = self._pages, self._starts, self._firsts, self._counts
        pages, *others = (column.ctypes.data for column in columns)
        pool = cache.raw.data_ptr(), cache.block_bytes
        self._table = np.array([pages, cache.state_pages, *others, *pool], np.int64)

    @property
    def address(self) -> int:
        """The address of all that kernels read of it."""
        return int(self._table.ctypes.data)

    def fill(self, batch: FlatBatch) -> None:
        """Take the rows of a batch; those behind them have no tokens."""
        count = len(batch.counts)
        self._pages[:count] = batch.state_pages
        self._starts[:count] = batch.starts
        self._firsts[:count] = batch.row_offsets
        self._counts[:count] = batch.counts
        self._counts[count:] = 0


@dataclass(frozen=True, slots=True)
class StateCalls:
    """Writes calls over the states of the first rows of a step."""

    rows: StateRows
    num_rows: int

    def convolve(self, layer: int, convolution: Convolution, output: torch.Tensor) -> Call:
        """`output` [T, C], dense, of a convolution whose inputs have dense channels."""
        inputs, weight, bias, activated = convolution
        stretches = self.rows.places.stretches(layer, CONV, kernels.CHANNELS_AT_ONCE)
        return self._call(
            len(stretches),
            kernels.convolved(weight.shape[1], activated),
            _address(stretches),
            len(stretches),
            inputs.data_ptr(),
            inputs.stride(0),
            weight.data_ptr(),
            or_none(bias),
            output.data_ptr(),
            inputs.shape[1],
        )

    def delta_rule(self, layer: int, rule: DeltaRule, output: torch.Tensor) -> Call:
        """`output` [T, H, dv], dense, of a rule whose heads lie side by side."""
        units, (num_heads, size) = self.rows.places.units(layer), rule.value.shape[1:]
        columns = lanes(size)
        return self._call(
            num_heads * (size // columns),
            kernels.delta_rule(columns, rule.key.shape[2]),
            _address(units),
            num_heads,
            *(part.data_ptr() for part in rule[:3]),
            *(part.stride(0) for part in rule[:3]),
            rule.decay.data_ptr(),
            int(rule.decay.dim() == 3),
            rule.beta.data_ptr(),
            size,
            rule.key.shape[1],
            output.data_ptr(),
        )

    def chunk_scan(self, layer: int, scan: Scan, output: torch.Tensor) -> Call:
        """`output` [T, H, P], dense, of a scan whose heads lie side by side."""
        units, (num_heads, num_inputs) = self.rows.places.units(layer), scan.inputs.shape[1:]
        size = scan.write.shape[2]
        return self._call(
            num_heads,
            kernels.chunk_scan(lanes(size)),
            _address(units),
            num_heads,
            scan.inputs.data_ptr(),
            scan.inputs.stride(0),
            scan.steps.data_ptr(),
            scan.rates.data_ptr(),
            *(part.data_ptr() for part in (scan.write, scan.read)),
            *(part.stride(0) for part in (scan.write, scan.read)),
            scan.write.shape[1],
            or_none(scan.direct),
            num_inputs,
            size,
            output.data_ptr(),
        )

    def selective_scan(self, layer: int, scan: Scan, output: torch.Tensor) -> Call:
        """`output` [T, C], dense, of a scan whose channels are dense."""
        stretches = self.rows.places.stretches(layer, SSM, kernels.CHANNELS_AT_ONCE)
        return self._call(
            len(stretches),
            kernels.selective_scan(lanes(scan.rates.shape[1])),
            _address(stretches),
            len(stretches),
            scan.inputs.data_ptr(),
            scan.inputs.stride(0),
            scan.steps.data_ptr(),
            scan.steps.stride(0),
            scan.rates.data_ptr(),
            *(part.data_ptr() for part in (scan.write, scan.read)),
            *(part.stride(0) for part in (scan.write, scan.read)),
            or_none(scan.direct),
            scan.rates.shape[1],
            output.data_ptr(),
            scan.inputs.shape[1],
        )

    def _call(self, num_parts: int, kernel: object, *arguments: int) -> Call:
        """The call of a kernel over `num_parts` of each row's state."""
        address: int = kernel.address  # type: ignore[attr-defined]
        return self.num_rows * num_parts, BY_ADDRESS, address, self.rows.address, *arguments


def or_none(numbers: torch.Tensor | None) -> int:
    """Their address; 0 where there are none."""
    return 0 if numbers is None else numbers.data_ptr()


def _address(array: Int64) -> int:
    return int(array.ctypes.data)


def lanes(size: int) -> int:
    """The widest vectors that a run of `size` numbers is made of."""
    return next(width for width in _LANES if size % width == 0)

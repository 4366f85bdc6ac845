"""Recurrent layers on the CPU: each is one call, which reads and writes states in their pages."""

from collections.abc import Sequence

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import recurrent_kernels as kernels
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.team import HERE_ELEMENTS, Team
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan
from daemon.memory.state_layout import CONV, SSM, StateLayout
from daemon.wire.columns import Int64

_FLOAT_BYTES = 4
_LANES = (32, 16, 8, 4, 2, 1)


class StatePlaces:
    """The places of each layer's state within its pages, as kernels take them."""

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self._units: dict[int, Int64] = {}
        self._stretches: dict[tuple[int, str], Int64] = {}

    def units(self, layer: int) -> Int64:
        """Page and offset of each head's matrix [H, 2]."""
        if layer not in self._units:
            size_bytes = _FLOAT_BYTES * self._numbers(layer, SSM)
            places = [
                (piece.page, piece.offset + unit * size_bytes)
                for piece in self.layout.pieces_of(layer, SSM)
                for unit in range(piece.count)
            ]
            self._units[layer] = np.array(places, np.int64)
        return self._units[layer]

    def stretches(self, layer: int, part: str) -> Int64:
        """First channel, number of channels, page, offset, and the bytes of all channels of the
        piece: of each stretch of neighbouring channels [N, 5].
        """
        if (layer, part) not in self._stretches:
            # A convolution's channels lie side by side, those of a scan each with its own numbers.
            step = _FLOAT_BYTES * (1 if part == CONV else self._numbers(layer, part))
            found = []
            for piece in self.layout.pieces_of(layer, part):
                for begin in range(0, piece.count, kernels.CHANNELS_AT_ONCE):
                    count = min(kernels.CHANNELS_AT_ONCE, piece.count - begin)
                    place = piece.page, piece.offset + begin * step
                    found.append((piece.first + begin, count, *place, piece.count * step))
            self._stretches[layer, part] = np.array(found, np.int64)
        return self._stretches[layer, part]

    def _numbers(self, layer: int, part: str) -> int:
        parts = {each.name: each for each in self.layout.layers[layer]}
        return parts[part].unit_numbers


class CpuRecurrence:
    """See `Recurrence`; for float32 states and pools of any type."""

    def __init__(self, batch: FlatBatch, cache: PagedKV, places: StatePlaces, team: Team) -> None:
        self._places, self._team = places, team
        self._num_rows = len(batch.starts)
        # Kernels are given addresses: these columns live as long as the step.
        self._columns = tuple(
            np.ascontiguousarray(column, np.int32)
            for column in (batch.state_pages, batch.starts, batch.row_offsets, batch.counts)
        )
        pages, *others = (column.ctypes.data for column in self._columns)
        pool = cache.raw.data_ptr(), cache.block_bytes
        self._rows = np.array([pages, batch.state_pages.shape[1], *others, *pool], np.int64)

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """See `Recurrence`."""
        stretches = self._places.stretches(layer, CONV)
        inputs, weight = _dense(convolution.inputs, 1), convolution.weight.contiguous()
        output = torch.empty(inputs.shape)
        self._run(
            len(stretches),
            weight.shape[1] * inputs.numel(),
            kernels.convolved(weight.shape[1], convolution.activated),
            _address(stretches),
            len(stretches),
            inputs.data_ptr(),
            inputs.stride(0),
            weight.data_ptr(),
            _or_none(convolution.bias),
            output.data_ptr(),
            inputs.shape[1],
        )
        return output

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """See `Recurrence`."""
        units, (num_heads, size) = self._places.units(layer), rule.value.shape[1:]
        query, key, value = (_dense(part, 2) for part in rule[:3])
        decay, beta = rule.decay.contiguous(), rule.beta.contiguous()
        output = torch.empty(value.shape)
        columns = _lanes(size)
        self._run(
            num_heads * (size // columns),
            value.numel() * key.shape[2],
            kernels.delta_rule(columns, key.shape[2]),
            _address(units),
            num_heads,
            *(part.data_ptr() for part in (query, key, value)),
            *(part.stride(0) for part in (query, key, value)),
            decay.data_ptr(),
            int(decay.dim() == 3),
            beta.data_ptr(),
            size,
            key.shape[1],
            output.data_ptr(),
        )
        return output

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        units, (num_heads, num_inputs) = self._places.units(layer), scan.inputs.shape[1:]
        inputs, write, read = (_dense(part, 2) for part in (scan.inputs, scan.write, scan.read))
        steps, rates = scan.steps.contiguous(), scan.rates.contiguous()
        output = torch.empty(inputs.shape)
        size = write.shape[2]
        self._run(
            num_heads,
            inputs.numel() * size,
            kernels.chunk_scan(_lanes(size)),
            _address(units),
            num_heads,
            inputs.data_ptr(),
            inputs.stride(0),
            steps.data_ptr(),
            rates.data_ptr(),
            *(part.data_ptr() for part in (write, read)),
            *(part.stride(0) for part in (write, read)),
            write.shape[1],
            _or_none(scan.direct),
            num_inputs,
            size,
            output.data_ptr(),
        )
        return output

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        stretches = self._places.stretches(layer, SSM)
        inputs, steps = _dense(scan.inputs, 1), _dense(scan.steps, 1)
        write, read = _dense(scan.write, 1), _dense(scan.read, 1)
        rates = scan.rates.contiguous()
        output = torch.empty(inputs.shape)
        self._run(
            len(stretches),
            inputs.numel() * rates.shape[1],
            kernels.selective_scan(_lanes(rates.shape[1])),
            _address(stretches),
            len(stretches),
            inputs.data_ptr(),
            inputs.stride(0),
            steps.data_ptr(),
            steps.stride(0),
            rates.data_ptr(),
            *(part.data_ptr() for part in (write, read)),
            *(part.stride(0) for part in (write, read)),
            _or_none(scan.direct),
            rates.shape[1],
            output.data_ptr(),
            inputs.shape[1],
        )
        return output

    def _run(self, num_parts: int, elements: int, kernel: object, *arguments: int) -> None:
        """Run a kernel over `num_parts` of each row's state."""
        address: int = kernel.address  # type: ignore[attr-defined]
        run = self._team.run_here if elements <= HERE_ELEMENTS else self._team.run
        items = self._num_rows * num_parts
        run((items, BY_ADDRESS, address, _address(self._rows), *arguments))


class MakeRecurrence:
    """Makes each step's recurrence; the places of states are kept for all steps of a pool."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._places: StatePlaces | None = None

    def __call__(self, batch: FlatBatch, cache: PagedKV) -> CpuRecurrence:
        """The recurrence of a batch over a pool with states."""
        assert cache.layout is not None, "a pool with states has a layout"
        assert cache.layout.states is not None, "a pool with states has a layout of them"
        if self._places is None or self._places.layout is not cache.layout.states:
            self._places = StatePlaces(cache.layout.states)
        return CpuRecurrence(batch, cache, self._places, self._team)


def _or_none(numbers: torch.Tensor | None) -> int:
    """Their address; 0 where there are none."""
    return 0 if numbers is None else numbers.data_ptr()


def _address(array: Int64) -> int:
    return int(array.ctypes.data)


def _dense(states: torch.Tensor, dims: int) -> torch.Tensor:
    """`states`, float32, whose last `dims` dimensions are dense."""
    inner = states.shape[-dims:]
    expected: Sequence[int] = (inner[1], 1) if dims == 2 else (1,)
    return states if states.stride()[-dims:] == (*expected,) else states.contiguous()


def _lanes(size: int) -> int:
    """The widest vectors that a run of `size` numbers is made of."""
    return next(lanes for lanes in _LANES if size % lanes == 0)

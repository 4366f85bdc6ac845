"""Recurrent layers on a GPU: each is one kernel, which reads and writes states in their pages."""

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.upload import upload, upload_all
from daemon.engine.cuda.triton import (
    DeviceStateRows,
    channels_at_once,
    chunk_scan,
    convolve,
    delta_rule,
    selective_scan,
)
from daemon.engine.cuda.triton.convolution import CHANNELS_AT_ONCE
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.state_places import StatePlaces
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan
from daemon.memory.state_layout import CONV, SSM
from daemon.wire.columns import Int64

_FLOAT_BYTES = 4


class DevicePlaces:
    """The places of states in a pool's pages, on its device, counted in numbers."""

    def __init__(self, cache: PagedKV) -> None:
        self.stored = cache.dtype  # of convolutions' last inputs
        self._device = cache.raw.device
        self._places = StatePlaces.of(cache)
        self._units: dict[int, torch.Tensor] = {}
        self._stretches: dict[tuple[int, str], torch.Tensor] = {}

    def are_of(self, cache: PagedKV) -> bool:
        """Whether they are those of a pool."""
        layout = cache.layout
        return (
            layout is not None
            and layout.states is self._places.layout
            and (cache.raw.device, cache.dtype) == (self._device, self.stored)
        )

    def units(self, layer: int) -> torch.Tensor:
        """Page and offset of each head's matrix int64 [H, 2]."""
        if layer not in self._units:
            self._units[layer] = self._upload(self._places.units(layer), 1, _FLOAT_BYTES)
        return self._units[layer]

    def stretches(self, layer: int, part: str, most: int) -> torch.Tensor:
        """Stretches int64 [S, 5] of at most `most` neighbouring channels: see `StatePlaces`."""
        if (layer, part) not in self._stretches:
            number_bytes = self.stored.itemsize if part == CONV else _FLOAT_BYTES
            places = self._places.stretches(layer, part, most, number_bytes)
            self._stretches[layer, part] = self._upload(places, 3, number_bytes)
        return self._stretches[layer, part]

    def _upload(self, places: Int64, first: int, number_bytes: int) -> torch.Tensor:
        """Places whose columns from `first` on are bytes."""
        counted = places.copy()
        counted[:, first:] //= number_bytes
        return upload(counted, self._device)


class CudaRecurrence:
    """See `Recurrence`; for float32 states of heads and channels, in pools of any type."""

    def __init__(self, rows: DeviceStateRows, places: DevicePlaces) -> None:
        self._rows, self._places = rows, places

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """See `Recurrence`."""
        inputs, weight, bias, activated = convolution
        stretches = self._places.stretches(layer, CONV, CHANNELS_AT_ONCE)
        where = stretches, self._rows, self._places.stored
        return convolve(_dense(inputs), weight.contiguous(), bias, activated, *where)

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """See `Recurrence`."""
        dense = DeltaRule(*map(_dense, rule))
        return delta_rule(*dense, self._places.units(layer), self._rows)

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        return chunk_scan(*_dense_scan(scan), self._places.units(layer), self._rows)

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        most = channels_at_once(scan.rates.shape[1])
        stretches = self._places.stretches(layer, SSM, most)
        return selective_scan(*_dense_scan(scan), stretches, self._rows)


class MakeCudaRecurrence:
    """Makes each step's recurrence; the places of states are kept for all steps of a pool."""

    def __init__(self) -> None:
        self._places: DevicePlaces | None = None

    def __call__(self, batch: FlatBatch, cache: PagedKV) -> CudaRecurrence:
        """The recurrence of a batch that lies on the host, over a pool with states."""
        columns = batch.state_pages, batch.starts, batch.row_offsets, batch.counts
        pages, *others = upload_all(
            [column.astype(np.int32) for column in columns], cache.raw.device
        )
        most = int(batch.counts.max(initial=1))
        return self.over(
            DeviceStateRows(cache.raw, pages, others[0], others[1], others[2], most), cache
        )

    def over(self, rows: DeviceStateRows, cache: PagedKV) -> CudaRecurrence:
        """The recurrence of rows that lie on the device."""
        if self._places is None or not self._places.are_of(cache):
            self._places = DevicePlaces(cache)
        return CudaRecurrence(rows, self._places)


def _dense_scan(scan: Scan) -> Scan:
    """A scan whose tokens' numbers lie side by side."""
    inputs, steps, write, read = map(_dense, (scan.inputs, scan.steps, scan.write, scan.read))
    rates = scan.rates.contiguous()
    return scan._replace(inputs=inputs, steps=steps, rates=rates, write=write, read=read)


def _dense(states: torch.Tensor) -> torch.Tensor:
    """`states` [T, ...] whose numbers of a token lie side by side."""
    return states if states[:1].is_contiguous() else states.contiguous()

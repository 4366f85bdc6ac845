"""The places of a state's parts in its pages, for kernels: see `daemon.memory.state_layout`."""

import numpy as np

from daemon.engine.kv.pool import PagedKV
from daemon.memory.state_layout import CONV, SSM, StateLayout
from daemon.wire.columns import Int64

_FLOAT_BYTES = 4


class StatePlaces:
    """The places of each layer's state within its pages, as kernels take them."""

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self._units: dict[int, Int64] = {}
        self._stretches: dict[tuple[int, str, int], Int64] = {}

    @classmethod
    def of(cls, cache: PagedKV) -> "StatePlaces":
        """The places in a pool with states."""
        assert cache.layout is not None, "a pool with states has a layout"
        assert cache.layout.states is not None, "a pool with states has a layout of them"
        return cls(cache.layout.states)

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

    def stretches(
        self, layer: int, part: str, most: int, number_bytes: int = _FLOAT_BYTES
    ) -> Int64:
        """First channel, number of channels, page, offset, and the bytes of all channels of the
        piece: of each stretch of at most `most` neighbouring channels [N, 5].
        """
        key = layer, part, most
        if key not in self._stretches:
            # A convolution's channels lie side by side, those of a scan each with its own numbers.
            step = number_bytes * (1 if part == CONV else self._numbers(layer, part))
            found = []
            for piece in self.layout.pieces_of(layer, part):
                for begin in range(0, piece.count, most):
                    count = min(most, piece.count - begin)
                    place = piece.page, piece.offset + begin * step
                    found.append((piece.first + begin, count, *place, piece.count * step))
            self._stretches[key] = np.array(found, np.int64)
        return self._stretches[key]

    def _numbers(self, layer: int, part: str) -> int:
        parts = {each.name: each for each in self.layout.layers[layer]}
        return parts[part].unit_numbers

"""The states of a step's sequences in their pages: see `daemon.memory.state_layout`.

The numbers of a head's matrix, or of a channel's row, lie side by side. The last inputs of a
convolution lie token by token, each with a piece's channels side by side: what computes a token
reads and writes neighbours.
"""

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.pool import PagedKV
from daemon.memory.state_layout import CONV, StatePiece


class StatePages:
    """The states of B rows: those in their pages, and zeros where a row begins its sequence."""

    def __init__(self, batch: FlatBatch, cache: PagedKV) -> None:
        assert cache.layout is not None and cache.layout.states is not None
        self._layout = cache.layout.states
        self._raw, self._dtype = cache.raw, cache.dtype
        device = cache.raw.device
        self._pages = torch.from_numpy(batch.state_pages).to(device).long()
        self._begin = torch.from_numpy(batch.starts == 0).to(device)

    def read(self, layer: int, part: str) -> torch.Tensor:
        """Copies of a part of a layer's states: [B, units, numbers], of a convolution [B, tokens,
        channels].
        """
        found = []
        for piece in self._layout.pieces_of(layer, part):
            begin, end = self._span(piece)
            numbers = self._raw[:, begin:end][self._pages[:, piece.page]].view(self._type(piece))
            shape = (-1, piece.count) if part == CONV else (piece.count, -1)
            found.append(numbers.view(len(numbers), *shape))
        states = torch.cat(found, 2 if part == CONV else 1)
        states[self._begin] = 0  # what the page holds is another's: not even times zero
        return states

    def write(self, layer: int, part: str, states: torch.Tensor) -> None:
        """Put `states`, shaped as `read` gives them, back to their pages."""
        for piece in self._layout.pieces_of(layer, part):
            begin, end = self._span(piece)
            units = slice(piece.first, piece.first + piece.count)
            own = states[:, :, units] if part == CONV else states[:, units]
            numbers = own.to(self._type(piece)).reshape(len(own), -1)
            self._raw[:, begin:end][self._pages[:, piece.page]] = numbers.view(torch.uint8)

    def _type(self, piece: StatePiece) -> torch.dtype:
        parts = {part.name: part for part in self._layout.layers[piece.layer]}
        return torch.float32 if parts[piece.part].is_float32 else self._dtype

    def _span(self, piece: StatePiece) -> tuple[int, int]:
        """The bytes of a piece within its page."""
        parts = {part.name: part for part in self._layout.layers[piece.layer]}
        size_bytes = piece.count * parts[piece.part].unit_numbers * self._type(piece).itemsize
        return piece.offset, piece.offset + size_bytes

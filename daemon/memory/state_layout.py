"""The layout of recurrent states: where in a sequence's state pages each layer's numbers lie.

A recurrent layer keeps the same few numbers of a sequence however long it is: the last inputs of a
convolution, and a matrix for each head or a row for each channel. They lie in pages of the pool's
size. A *unit* (a head's matrix, a channel's row) lies in one page; what a layer keeps is cut into
pieces of whole units where a page ends. Units of one piece lie one behind the other.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

CONV = "conv"
"""The part of a state that holds the last inputs of a convolution: a row for each channel."""
SSM = "ssm"
"""The part that a recurrence carries on: a matrix for each head, or a row for each channel."""

ALIGN_BYTES = 64
"""Pieces begin at multiples of this."""
BEST_PAGE_BYTES = 1 << 20
"""About a page's size where there are no keys and values to choose it by."""

_LEAST_SHARE = 16
"""A piece that is not all that is left of its part fills at least this part of a page."""
_FLOAT32_BYTES = 4


class StatePart(msgspec.Struct, frozen=True):
    """A part of what a layer keeps of a sequence: units of equal size."""

    name: str  # CONV or SSM
    num_units: int  # heads, or channels
    unit_numbers: int
    is_float32: bool = False  # whatever type the model computes in; else that type
    num_shares: int = 0  # heads that may lie apart, on several ranks, with equal units; 0: all not
    num_groups: int = 0  # of these heads, which have units together; each may lie on several ranks
    group_units: int = 0  # of all groups, behind those of heads

    def share(self, num_heads: int, num_groups: int) -> "StatePart":
        """The part of so many of these heads, and of the groups that they belong to."""
        of_groups = self.group_units * num_groups // max(self.num_groups, 1)
        of_heads = (self.num_units - self.group_units) * num_heads // self.num_shares
        return msgspec.structs.replace(
            self,
            num_units=of_heads + of_groups,
            num_shares=num_heads,
            num_groups=num_groups if self.num_groups else 0,
            group_units=of_groups,
        )

    def unit_bytes(self, number_bytes: int) -> int:
        """Bytes of a unit; `number_bytes` are those of a number of the model's type."""
        return self.unit_numbers * (_FLOAT32_BYTES if self.is_float32 else number_bytes)


class StatePiece(msgspec.Struct, frozen=True, kw_only=True):
    """Units of a layer's part that lie in one page, one behind the other."""

    layer: int
    part: str
    first: int  # unit
    count: int
    page: int  # of the sequence's state pages
    offset: int  # bytes from the page's first


class StateLayout(msgspec.Struct, frozen=True):
    """The parts that each layer keeps of a sequence, and their places in `num_pages` pages."""

    layers: tuple[tuple[StatePart, ...], ...]  # of each layer of the model; many keep nothing
    num_pages: int
    pieces: tuple[StatePiece, ...]

    def stretched(self, times: int) -> "StateLayout":
        """The layout with every piece `times` as far in."""
        pieces = tuple(
            msgspec.structs.replace(piece, offset=piece.offset * times) for piece in self.pieces
        )
        return msgspec.structs.replace(self, pieces=pieces)

    def pieces_of(self, layer: int, part: str) -> list[StatePiece]:
        """The pieces of a layer's part, in order of their units."""
        found = [piece for piece in self.pieces if (piece.layer, piece.part) == (layer, part)]
        return sorted(found, key=lambda piece: piece.first)


def state_bytes(layers: Iterable[Sequence[StatePart]], number_bytes: int) -> int:
    """Bytes of what layers keep of a sequence, without padding."""
    parts = (part for layer in layers for part in layer)
    return sum(part.num_units * part.unit_bytes(number_bytes) for part in parts)


def least_page_bytes(layers: Iterable[Sequence[StatePart]], number_bytes: int) -> int:
    """Bytes of the smallest page that holds any unit of these layers."""
    units = (part.unit_bytes(number_bytes) for layer in layers for part in layer)
    return _aligned(max(units, default=0))


def own_page_bytes(layers: Sequence[Sequence[StatePart]], number_bytes: int) -> int:
    """Bytes of a page where no layer has keys and values: the state is cut into equal pages, as few
    as are not much larger than `BEST_PAGE_BYTES`.
    """
    total = state_bytes(layers, number_bytes)
    count = max(1, round(total / BEST_PAGE_BYTES))
    size = max(_aligned(-(-total // count)), least_page_bytes(layers, number_bytes))
    while len(_packed(layers, size, number_bytes)[1]) > count:  # units leave gaps at pages' ends
        size += ALIGN_BYTES * max(1, size // ALIGN_BYTES // 64)
    return size


def state_layout(
    layers: Sequence[Sequence[StatePart]], page_bytes: int, number_bytes: int
) -> StateLayout:
    """The layout of what `layers` keep in pages of `page_bytes`, which hold any of their units."""
    pieces, free = _packed(layers, page_bytes, number_bytes)
    return StateLayout(tuple(tuple(layer) for layer in layers), len(free), tuple(pieces))


def _packed(
    layers: Sequence[Sequence[StatePart]], page_bytes: int, number_bytes: int
) -> tuple[list[StatePiece], list[int]]:
    """Pieces, and the bytes left in each page. Large units go first, into the first page with room
    for enough of them; small ones fill the gaps that these leave.
    """
    pieces: list[StatePiece] = []
    free: list[int] = []
    for layer, part in _largest_first(layers, number_bytes):
        size, first, page = part.unit_bytes(number_bytes), 0, 0
        least = max(1, page_bytes // _LEAST_SHARE // size)
        while first < part.num_units:
            wanted = min(least, part.num_units - first)
            while page < len(free) and free[page] < wanted * size:
                page += 1
            if page == len(free):
                free.append(page_bytes)
            count = min(part.num_units - first, free[page] // size)
            pieces.append(
                StatePiece(
                    layer=layer,
                    part=part.name,
                    first=first,
                    count=count,
                    page=page,
                    offset=page_bytes - free[page],
                )
            )
            free[page] = max(0, free[page] - _aligned(count * size))
            first += count
    return pieces, free


def _largest_first(
    layers: Sequence[Sequence[StatePart]], number_bytes: int
) -> Iterator[tuple[int, StatePart]]:
    placed = [(layer, part) for layer, parts in enumerate(layers) for part in parts]
    yield from sorted(placed, key=lambda each: -each[1].unit_bytes(number_bytes))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES

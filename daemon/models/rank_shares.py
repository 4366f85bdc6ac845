"""The share of each rank where several compute one model together: heads, widths, rows.

Heads of keys and values stay whole. Where there are at least as many as ranks, a rank has some of
them, with all their queries; where there are fewer, several ranks have the same one, and a part of
its queries each. Shares are as even as that allows, so ranks may differ.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.state_layout import StatePart
from daemon.models.shape import ModelError, ModelShape


class Range(NamedTuple):
    """From the first to before the last."""

    first: int
    last: int

    def times(self, size: int) -> "Range":
        """The same of things of which each has `size` parts."""
        return Range(self.first * size, self.last * size)

    @property
    def size(self) -> int:
        """How many there are."""
        return self.last - self.first


class HeadShare(NamedTuple):
    """The heads of a rank."""

    queries: Range
    keys: Range  # and values


def even_shares(total: int, world_size: int, unit: int = 1) -> tuple[Range, ...]:
    """`total` in neighbouring ranges of whole `unit`s, but for the last; some may be empty."""
    units = -(-total // unit)
    begins = [rank * units // world_size for rank in range(world_size + 1)]
    ends = [min(begin * unit, total) for begin in begins]
    return tuple(Range(*pair) for pair in pairwise(ends))


def head_shares(num_heads: int, num_kv_heads: int, world_size: int) -> tuple[HeadShare, ...]:
    """The heads of each rank; none of a model without attention. Raises ModelError where there are
    not enough.
    """
    if not num_heads:
        return (HeadShare(Range(0, 0), Range(0, 0)),) * world_size
    if num_heads < world_size:
        raise ModelError(f"{num_heads} heads cannot be split over {world_size} ranks")
    group = num_heads // num_kv_heads
    if world_size <= num_kv_heads:
        keys = even_shares(num_kv_heads, world_size)
        return tuple(HeadShare(own.times(group), own) for own in keys)
    found = list[HeadShare]()
    for head, ranks in enumerate(even_shares(world_size, num_kv_heads)):
        for part in even_shares(group, ranks.size):
            first = head * group
            queries = Range(first + part.first, first + part.last)
            found.append(HeadShare(queries, Range(head, head + 1)))
    if any(not share.queries.size for share in found):
        said = f"{num_heads} heads, {num_kv_heads} of keys, leave one of {world_size} without any"
        raise ModelError(f"ranks have whole heads, and {said}")
    return tuple(found)


NO_PLAN = "transformers has no plan of its layers"
"""Why a type cannot be split over ranks of which nobody says which layers are cut."""


def split_refusals(shape: ModelShape) -> Iterator[str]:
    """Every reason why a model of this shape cannot be split over ranks."""
    if not shape.can_share:
        yield NO_PLAN
    if len({heads for heads in shape.layer_heads if heads != NO_KEYS}) > 1:
        yield "its layers have unlike heads"


def shape_of_rank(shape: ModelShape, rank: int, world_size: int) -> ModelShape:
    """The shape of what a rank holds of keys, values and states. Raises ModelError."""
    if world_size == 1:
        return shape
    if not shape.layer_states:
        return _alone(shape, rank, world_size)
    ranks = (rank, *(other for other in range(world_size) if other != rank))
    own, *others = (_alone(shape, each, world_size) for each in ranks)
    return msgspec.structs.replace(own, beside=tuple(others))


def _alone(shape: ModelShape, rank: int, world_size: int) -> ModelShape:
    """The shape of a rank without the others."""
    for reason in split_refusals(shape):
        raise ModelError(f"{shape.model_type} cannot be split over ranks yet: {reason}")
    share = head_shares(shape.num_heads, shape.num_kv_heads, world_size)[rank]
    return msgspec.structs.replace(
        shape,
        num_heads=share.queries.size,
        num_kv_heads=share.keys.size,
        layer_heads=tuple(_heads_of_rank(heads, share) for heads in shape.layer_heads),
        layer_states=tuple(
            tuple(_part_of_rank(part, rank, world_size) for part in parts)
            for parts in shape.layer_states
        ),
    )


def _heads_of_rank(heads: KVHeads, share: HeadShare) -> KVHeads:
    """A layer's heads of keys on a rank; latent rows are the same on all."""
    if heads.latent or heads == NO_KEYS:
        return heads
    return msgspec.structs.replace(heads, num_kv_heads=share.keys.size)


_MOST_SHARES = 32
"""Most parts of a convolution's channels: each of a large model's has whole blocks of weights."""


def channel_shares(num_channels: int) -> int:
    """The equal parts that the channels of a convolution without heads may be shared out in."""
    return math.gcd(num_channels, _MOST_SHARES)


def state_shares(num_shares: int, world_size: int, num_groups: int = 0) -> tuple[HeadShare, ...]:
    """The heads, or other equal parts, of a recurrent layer's state that each rank has, and their
    groups in the place of heads of keys. Raises ModelError.
    """
    if num_shares < world_size:
        said = f"{num_shares} parts of recurrent layers"
        raise ModelError(f"{said} cannot be split over {world_size} ranks")
    return head_shares(num_shares, num_groups or num_shares, world_size)


def _part_of_rank(part: StatePart, rank: int, world_size: int) -> StatePart:
    own = state_shares(part.num_shares, world_size, part.num_groups)[rank]
    return part.share(own.queries.size, own.keys.size)


def _num_units(shape: ModelShape) -> int:
    return sum(part.num_units for parts in shape.layer_states for part in parts)


def largest_share(shape: ModelShape, world_size: int) -> ModelShape:
    """The shape of the rank that holds the most, its weights too. Raises ModelError."""
    if world_size == 1:
        return shape
    shapes = [shape_of_rank(shape, rank, world_size) for rank in range(world_size)]
    largest = max(shapes, key=lambda own: (own.num_kv_heads, own.num_heads, _num_units(own)))
    whole = shape.num_heads or _num_units(shape)
    part = (largest.num_heads or _num_units(largest)) / whole
    return msgspec.structs.replace(
        largest,
        num_params=-int(-shape.num_params * part),
        packed_params=-int(-shape.packed_params * part),
        packed_bytes=-int(-shape.packed_bytes * part),
    )

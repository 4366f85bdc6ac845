"""The keys and values that pass between instances, where each divides the model in its own way.

Between instances that divide it alike each rank sends its whole blocks to the rank of its number.
Otherwise, where both compute in one type, a rank of the target gets each head of each layer that it
holds from the one rank of the source that has it; where several have the same (fewer heads than
ranks, latent rows), the ranks of the target take turns with them. Blocks of all ranks count the
same tokens, so a block is sent in parts of those that hold it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from daemon.config.instance_text import num_ranks
from daemon.config.pool import PoolPlan
from daemon.config.schema import InstanceSpec
from daemon.memory.sizing import heads_of
from daemon.models.rank_shares import Range, head_shares
from daemon.models.shape import ModelShape
from daemon.models.stages import layers_of, stage_of
from daemon.state.role import Role


class RankSplit(msgspec.Struct, frozen=True):
    """How an instance divides its model among ranks."""

    num_ranks: int = 1
    stage_layers: tuple[int, ...] = ()  # of each stage; empty: ranks have shares of all layers
    dtypes: tuple[str, ...] = ()  # in which each rank computes; empty: all in the same


def rank_splits(
    specs: Sequence[InstanceSpec],
    stage_layers: Sequence[Sequence[int]],
    pools: Sequence[PoolPlan],
) -> list[RankSplit]:
    """How each instance divides the model; `stage_layers`: of its stages, where it has some."""
    layers = stage_layers or [()] * len(specs)
    return [
        RankSplit(
            num_ranks(spec),
            tuple(counts),
            tuple(plan.of_rank(rank).dtype for rank in range(num_ranks(spec))),
        )
        for spec, counts, plan in zip(specs, layers, pools, strict=True)
    ]


class KVPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of each block, by the numbers that its pool gives layers and heads; None: all."""

    layers: Range | None = None
    heads: Range | None = None


class RankLink(NamedTuple):
    """A link between a rank of each of two instances, and the part of blocks that goes over it."""

    source: int  # rank
    target: int  # rank
    sent: KVPart | None = None  # by the numbers of the source; None: whole blocks
    taken: KVPart | None = None  # by those of the target


def rank_links(shape: ModelShape, source: RankSplit, target: RankSplit) -> tuple[RankLink, ...]:
    """The links between ranks by which blocks go from one instance to another; none: none go."""
    if source == target:
        return tuple(RankLink(rank, rank) for rank in range(source.num_ranks))
    if next(unlike_refusals(shape, source, target), ""):
        return ()
    theirs = _held(shape, source)
    return tuple(
        link
        for number, own in enumerate(_held(shape, target))
        for link in _links_to(number, own, theirs)
    )


def unlike_refusals(shape: ModelShape, source: RankSplit, target: RankSplit) -> Iterator[str]:
    """Every reason why blocks cannot pass between instances that are so unlike."""
    types = sorted({*source.dtypes, *target.dtypes})
    if len(types) > 1:
        yield f"no other instance computes in the types that it does, and {_named(types)} differ"
    if msgspec.structs.replace(source, dtypes=target.dtypes) == target:
        return
    if any(shape.layer_states):
        yield f"{_DIVIDED} its recurrent layers have states, which are not divided anew"
    kinds = {*zip(shape.windows or (0,) * shape.num_layers, heads_of(shape), strict=True)}
    if (source.stage_layers or target.stage_layers) and len(kinds) > 1:
        yield f"{_DIVIDED} its layers hold unlike pages, which stages count otherwise"


_DIVIDED = "no other instance divides the model so, and"


def _named(types: Sequence[str]) -> str:
    return " and ".join(types)


class _Held(NamedTuple):
    """The keys and values of a rank, by the model's numbers."""

    layers: Range
    heads: Range


def _held(shape: ModelShape, split: RankSplit) -> list[_Held]:
    """The keys and values of each rank of an instance."""
    ranks, layers = range(split.num_ranks), Range(0, shape.num_layers)
    first = heads_of(shape)[0]
    heads = Range(0, first.num_kv_heads)
    if split.stage_layers:
        own = (layers_of(stage_of(rank, split.num_ranks), split.stage_layers) for rank in ranks)
        return [_Held(each, heads) for each in own]
    if split.num_ranks == 1 or first.latent:
        return [_Held(layers, heads) for _ in ranks]
    shares = head_shares(shape.num_heads, shape.num_kv_heads, split.num_ranks)
    return [_Held(layers, share.keys) for share in shares]


def _links_to(target: int, own: _Held, theirs: Sequence[_Held]) -> Iterator[RankLink]:
    """The links by which a rank gets all that it holds, each head of a layer over one of them."""
    for layers in sorted({held.layers for held in theirs}):
        common = _common(layers, own.layers)
        if not common.size:
            continue

        def holder(head: int, layers: Range = layers) -> int:
            found = [
                rank
                for rank, held in enumerate(theirs)
                if held.layers == layers and held.heads.first <= head < held.heads.last
            ]
            return found[target % len(found)]

        for source, heads in groupby(range(*own.heads), holder):
            some = list(heads)
            part = common, Range(some[0], some[-1] + 1)
            sent, taken = _numbered(theirs[source], *part), _numbered(own, *part)
            yield RankLink(source, target, sent, taken)


def _common(here: Range, there: Range) -> Range:
    first = max(here.first, there.first)
    return Range(first, max(first, min(here.last, there.last)))


def _numbered(held: _Held, layers: Range, heads: Range) -> KVPart:
    """A part by the numbers of a pool that holds it."""
    return KVPart(
        None if layers == held.layers else _behind(held.layers.first, layers),
        None if heads == held.heads else _behind(held.heads.first, heads),
    )


def _behind(first: int, own: Range) -> Range:
    return Range(own.first - first, own.last - first)


def unlinked(
    shape: ModelShape, specs: Sequence[InstanceSpec], splits: Sequence[RankSplit]
) -> Iterator[str]:
    """A sentence for each instance with a role that no keys and values move to or from, though
    there are others. `splits`: of each instance.
    """
    for number, (spec, own) in enumerate(zip(specs, splits, strict=True)):
        others = [split for at, split in enumerate(splits) if at != number]
        if spec.role == Role.MIXED or any(rank_links(shape, own, other) for other in others):
            continue
        reasons = [reason for other in others for reason in unlike_refusals(shape, own, other)]
        if reasons:
            yield (
                f"{spec.name} has the role {spec.role}, but no keys and values move to it or from "
                f"it: {reasons[0]}"
            )

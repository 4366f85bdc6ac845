"""Which rank sends which heads of which layers to which, between instances of unlike splits."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config.instance_text import parse_instance
from daemon.memory.layout import KVHeads
from daemon.memory.state_layout import CONV, StatePart
from daemon.models.kv_parts import KVPart, RankLink, RankSplit, rank_links, unlinked
from daemon.models.rank_shares import Range, head_shares
from daemon.models.shape import ModelShape
from daemon.models.stages import layers_of, stage_of
from tests.shapes import tiny_shape

WHOLE = RankSplit()


def plain_shape(num_layers: int, num_heads: int, num_kv_heads: int) -> ModelShape:
    return tiny_shape(num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads)


@st.composite
def splits(draw: st.DrawFn, shape: ModelShape) -> RankSplit:
    num_ranks = draw(st.integers(1, min(5, shape.num_heads)))
    if draw(st.booleans()):
        return RankSplit(num_ranks)
    num_stages = draw(st.integers(2, min(4, shape.num_layers)))
    cuts = draw(st.permutations(range(1, shape.num_layers)))[: num_stages - 1]
    edges = [0, *sorted(cuts), shape.num_layers]
    layers = tuple(b - a for a, b in pairwise(edges))
    return RankSplit(num_stages, layers)


def cells(shape: ModelShape, split: RankSplit, rank: int, part: KVPart | None) -> list[str]:
    """The heads of layers of a part of a rank's block, in the order of the block."""
    layers, heads = Range(0, shape.num_layers), Range(0, shape.num_kv_heads)
    if shape.layer_heads:
        heads = Range(0, 1)
    elif not split.stage_layers:
        heads = head_shares(shape.num_heads, shape.num_kv_heads, split.num_ranks)[rank].keys
    if split.stage_layers:
        layers = layers_of(stage_of(rank, split.num_ranks), split.stage_layers)
    own = [[f"{layer}/{head}" for head in range(*heads)] for layer in range(*layers)]
    part = part or KVPart()
    rows = own[slice(*part.layers)] if part.layers else own
    assert part.layers is None or part.layers.last <= layers.size
    assert part.heads is None or part.heads.last <= heads.size
    return [cell for row in rows for cell in (row[slice(*part.heads)] if part.heads else row)]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), num_kv_heads=st.integers(1, 6), group=st.integers(1, 4))
@pytest.mark.parametrize("latent", [0, 8])
def test_each_rank_gets_all_that_it_holds_once(
    latent: int, data: st.DataObject, num_kv_heads: int, group: int
) -> None:
    num_layers = data.draw(st.integers(2, 7))
    shape = plain_shape(num_layers, num_kv_heads * group, num_kv_heads)
    if latent:
        rows = (KVHeads(1, 2 * latent, latent=latent),) * num_layers
        shape = msgspec.structs.replace(shape, layer_heads=rows)
    source, target = (data.draw(splits(shape)) for _ in range(2))
    links = rank_links(shape, source, target)
    assert len({(link.source, link.target) for link in links}) == len(links), "one for each pair"
    got = [list[str]() for _ in range(target.num_ranks)]
    for link in links:
        sent = cells(shape, source, link.source, link.sent)
        assert sent and sent == cells(shape, target, link.target, link.taken)
        got[link.target] += sent
    for rank, found in enumerate(got):
        assert Counter(found) == Counter(cells(shape, target, rank, None))


def test_ranks_that_have_the_same_head_take_turns() -> None:
    shape = plain_shape(4, 4, 2)
    links = rank_links(shape, RankSplit(4), RankSplit(2, (1, 3)))
    assert [(link.source, link.target) for link in links] == [(0, 0), (2, 0), (1, 1), (3, 1)]
    assert links[0].sent == KVPart(Range(1, 4), None)
    assert links[0].taken == KVPart(None, Range(0, 1))
    assert rank_links(shape, WHOLE, WHOLE) == (RankLink(0, 0),)
    assert rank_links(shape, RankSplit(2), RankSplit(2)) == (RankLink(0, 0), RankLink(1, 1))


def test_states_and_unlike_pages_are_not_divided_anew() -> None:
    shape = plain_shape(4, 4, 4)
    states = msgspec.structs.replace(shape, layer_states=((StatePart(CONV, 8, 3),), (), (), ()))
    assert not rank_links(states, WHOLE, RankSplit(2)) and rank_links(states, WHOLE, WHOLE)
    windows = msgspec.structs.replace(shape, windows=(8, 0, 8, 0))
    assert not rank_links(windows, WHOLE, RankSplit(2, (2, 2)))
    assert len(rank_links(windows, RankSplit(3), RankSplit(2))) == 3
    specs = [
        msgspec.structs.replace(parse_instance(text), name=name)
        for name, text in zip("abc", ("cpu:pp2:prefill", "cpu:decode", "cpu"), strict=True)
    ]
    ways = [RankSplit(2, (2, 2)), WHOLE, WHOLE]
    assert not list(unlinked(shape, specs, ways))
    assert list(unlinked(windows, specs, ways)) == [
        "a has the role prefill, but no keys and values move to it or from it: no other instance "
        "divides the model so, and its layers hold unlike pages, which stages count otherwise"
    ]
    assert not list(unlinked(windows, specs[:1], ways[:1])), "nobody else is there"


def test_pools_of_unlike_types_are_never_joined() -> None:
    shape = plain_shape(4, 4, 4)
    card, host = RankSplit(dtypes=("bfloat16",)), RankSplit(dtypes=("float32",))
    both = RankSplit(2, (2, 2), ("bfloat16", "float32"))
    assert not rank_links(shape, card, host) and rank_links(shape, card, card)
    assert not rank_links(shape, card, both) and len(rank_links(shape, both, both)) == 2
    specs = [
        msgspec.structs.replace(parse_instance(text), name=text)
        for text in ("cuda:0:prefill", "cpu:decode")
    ]
    assert list(unlinked(shape, specs, [card, host]))[1:] == [
        "cpu:decode has the role decode, but no keys and values move to it or from it: no other "
        "instance computes in the types that it does, and bfloat16 and float32 differ"
    ]

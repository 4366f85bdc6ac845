"""Shares of ranks: each head, width and row is one rank's, or of few keys that of its queries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.sizing import configured_layout
from daemon.memory.state_layout import CONV, SSM, StatePart
from daemon.models.rank_shares import (
    HeadShare,
    Range,
    even_shares,
    head_shares,
    largest_share,
    shape_of_rank,
)
from daemon.models.shape import ModelError
from tests.shapes import tiny_shape


@given(st.integers(0, 5000), st.integers(1, 16), st.sampled_from((1, 32, 256)))
def test_even_shares_are_neighbours_of_whole_units(total: int, world_size: int, unit: int) -> None:
    shares = even_shares(total, world_size, unit)
    assert [index for share in shares for index in range(*share)] == list(range(total))
    assert all(share.last % unit == 0 or share.last == total for share in shares)
    assert max(share.size for share in shares) - min(share.size for share in shares) < 2 * unit


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16))
def test_every_query_has_its_keys(num_kv_heads: int, group: int, world_size: int) -> None:
    num_heads = num_kv_heads * group
    try:
        shares = head_shares(num_heads, num_kv_heads, world_size)
    except ModelError:
        assert world_size > num_kv_heads and group < -(-world_size // num_kv_heads)
        return
    assert [head for share in shares for head in range(*share.queries)] == list(range(num_heads))
    for share in shares:
        own_group = share.queries.size // share.keys.size
        for index, head in enumerate(range(*share.queries)):
            assert share.keys.first + index // own_group == head // group


def test_the_embedded_model_s_heads_are_uneven() -> None:
    assert head_shares(9, 3, 2) == (
        HeadShare(Range(0, 3), Range(0, 1)),
        HeadShare(Range(3, 9), Range(1, 3)),
    )


def test_a_rank_has_a_shape_of_its_own() -> None:
    shape = tiny_shape(num_heads=9, num_kv_heads=3, num_params=900)
    assert shape_of_rank(shape, 0, 1) is shape
    own = shape_of_rank(shape, 1, 2)
    assert (own.num_heads, own.num_kv_heads, own.hidden_size) == (6, 2, shape.hidden_size)
    assert largest_share(shape, 2).num_kv_heads == 2
    assert largest_share(shape, 2).num_params == 600


def test_latent_rows_are_the_same_on_all_ranks() -> None:
    rows = (KVHeads(1, 24, latent=16),) * 2
    shape = tiny_shape(num_heads=5, num_kv_heads=1, head_dim=24, layer_heads=rows)
    parts = [shape_of_rank(shape, rank, 2) for rank in (0, 1)]
    assert [part.num_heads for part in parts] == [2, 3]
    assert {(part.num_kv_heads, part.layer_heads) for part in parts} == {(1, rows)}


def test_states_are_shared_by_heads_and_pages_are_counted_alike() -> None:
    """Three heads of keys, each with four channels and two matrices, over two ranks."""
    net = (StatePart(CONV, 12, 3, num_shares=3), StatePart(SSM, 6, 64, True, num_shares=3))
    heads = (NO_KEYS, KVHeads(4, 16))
    shape = tiny_shape(num_kv_heads=4, layer_heads=heads, layer_states=(net, ()))
    parts = [shape_of_rank(shape, rank, 2) for rank in (0, 1)]
    units = [[part.num_units for part in it.layer_states[0]] for it in parts]
    assert units == [[4, 2], [8, 4]]
    assert {part.layer_heads for part in parts} == {(NO_KEYS, KVHeads(2, 16))}
    layouts = [configured_layout(part, 4, "float32") for part in parts]
    own = [len({piece.page for piece in it.states.pieces}) for it in layouts if it.states]
    assert own[0] < own[1] and {it.state_pages for it in layouts} == {own[1]}
    with pytest.raises(ModelError, match="3 parts of recurrent layers cannot be split"):
        shape_of_rank(shape, 0, 4)


def test_a_group_of_heads_is_on_all_ranks_that_have_some_of_them() -> None:
    """Mamba 2 alone: six heads of four channels, three directions of each of two groups, over three
    ranks; the last two share a group.
    """
    groups = {"num_shares": 6, "num_groups": 2}
    mixer = (
        StatePart(CONV, 24 + 2 * 2 * 3, 3, group_units=12, **groups),
        StatePart(SSM, 6, 64, True, **groups),
    )
    shape = tiny_shape(num_heads=0, num_kv_heads=0, layer_states=(mixer,) * 2)
    parts = [shape_of_rank(shape, rank, 3) for rank in range(3)]
    units = [[part.num_units for part in it.layer_states[0]] for it in parts]
    assert units == [[12 + 6, 3], [4 + 6, 1], [8 + 6, 2]]
    assert largest_share(shape, 3).num_params == -(-shape.num_params * 21 // 42)


def test_shapes_that_are_not_split_are_named() -> None:
    unlike = tiny_shape(layer_heads=(KVHeads(1, 16), KVHeads(2, 8)))
    with pytest.raises(ModelError, match="its layers have unlike heads"):
        shape_of_rank(unlike, 0, 2)
    with pytest.raises(ModelError, match="4 heads cannot be split over 5 ranks"):
        shape_of_rank(tiny_shape(), 0, 5)

"""The layout of recurrent states, against bytes worked by hand for published shapes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.layout import NO_KEYS, KVHeads, KVLayout, layout_of
from daemon.memory.state_layout import (
    BEST_PAGE_BYTES,
    CONV,
    SSM,
    StateLayout,
    StatePart,
    least_page_bytes,
    own_page_bytes,
    state_bytes,
    state_layout,
)

KIB, MIB = 1 << 10, 1 << 20

Parts = tuple[StatePart, ...]


def delta_net(num_keys: int, num_values: int) -> Parts:
    """A gated delta net of heads of 128, with a convolution over 4 tokens."""
    channels = (2 * num_keys + num_values) * 128
    return (StatePart(CONV, channels, 3), StatePart(SSM, num_values, 128 * 128, is_float32=True))


def _in_bfloat16(kinds: str, heads: KVHeads, parts: Parts) -> KVLayout:
    """A layout of layers that attend (a), keep `parts` (s), both (b), or neither (-)."""
    keys = [heads if kind in "ab" else NO_KEYS for kind in kinds]
    states = [parts if kind in "sb" else () for kind in kinds]
    return layout_of([0] * len(kinds), keys, lambda dim: 2 * dim, 16, (), states, 2)


_QWEN_27B = _in_bfloat16("sssa" * 16, KVHeads(4, 256), delta_net(16, 48))
_QWEN_35B_A3B = _in_bfloat16("sssa" * 10, KVHeads(2, 256), delta_net(16, 32))
_NEMOTRON_3_NANO = _in_bfloat16(
    "s-" * 23 + "a" * 6,
    KVHeads(2, 128),
    (StatePart(CONV, 64 * 64 + 2 * 8 * 128, 3), StatePart(SSM, 64, 64 * 128, is_float32=True)),
)


@pytest.mark.parametrize("num_tokens", [1 << 10, 1 << 15, 1 << 17])
def test_bytes_held_are_those_worked_by_hand(num_tokens: int) -> None:
    expected = {
        # 48 delta nets of 48 matrices of 64 KiB and 10,240 channels of 6 bytes; 16 layers, 4 KiB.
        _QWEN_27B: 48 * (48 * 64 * KIB + 10240 * 6) + num_tokens * 16 * 4 * KIB,
        # 30 delta nets of 32 matrices and 8,192 channels; 10 layers of 2 KiB a token.
        _QWEN_35B_A3B: 30 * (32 * 64 * KIB + 8192 * 6) + num_tokens * 10 * 2 * KIB,
        # 23 layers of 64 matrices of 32 KiB and 6,144 channels; 6 layers of 1 KiB a token.
        _NEMOTRON_3_NANO: 23 * (64 * 32 * KIB + 6144 * 6) + num_tokens * 6 * KIB,
    }
    for layout, size_bytes in expected.items():
        assert abs(layout.bytes_at(num_tokens) - size_bytes) <= 0.05 * size_bytes


def test_a_sequence_holds_its_states_from_its_first_token_on() -> None:
    layout, states = _QWEN_35B_A3B, _QWEN_35B_A3B.state_pages
    assert layout.pages_at(0) == 0
    assert [layout.pages_at(tokens) for tokens in (1, 16, 17)] == [
        states + 1,
        states + 1,
        states + 2,
    ]
    assert layout.most_tokens(states + 3, 4096, 512) == 48
    assert layout.most_tokens(states - 1, 4096, 512) == 0
    assert not layout.is_plain


def test_a_page_holds_at_least_a_unit() -> None:
    layout = _in_bfloat16("sa", KVHeads(1, 16), (StatePart(SSM, 3, 4096, is_float32=True),))
    assert layout.page_bytes == 16 * KIB
    assert layout.state_pages == 3


def test_a_model_without_attention_has_pages_of_its_own() -> None:
    parts = (StatePart(CONV, 5120, 3), StatePart(SSM, 5120, 16, is_float32=True))
    layout = _in_bfloat16("s" * 64, NO_KEYS, parts)
    assert layout.groups == ()
    assert 0.5 * BEST_PAGE_BYTES < layout.page_bytes < 2 * BEST_PAGE_BYTES
    total = state_bytes((parts,) * 64, 2)
    assert total <= layout.bytes_at(1) == layout.bytes_at(1 << 20) <= 1.05 * total
    assert layout.most_tokens(layout.state_pages, 1 << 20, 512) == 1 << 20


def _check(found: StateLayout, page_bytes: int, number_bytes: int) -> None:
    """Each unit lies in one place, and no two pieces overlap."""
    taken: list[tuple[int, int, int]] = []
    for layer, parts in enumerate(found.layers):
        for part in parts:
            size, first = part.unit_bytes(number_bytes), 0
            for piece in found.pieces_of(layer, part.name):
                assert piece.first == first
                assert piece.count > 0
                first += piece.count
                end = piece.offset + piece.count * size
                assert 0 <= piece.offset <= end <= page_bytes
                assert piece.offset % 64 == 0
                taken.append((piece.page, piece.offset, end))
            assert first == part.num_units
    taken.sort()
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(taken))
    assert {page for page, _, _ in taken} == set(range(found.num_pages))


_PARTS = st.tuples(
    st.builds(StatePart, st.just(CONV), st.integers(1, 200), st.integers(1, 6)),
    st.builds(StatePart, st.just(SSM), st.integers(1, 40), st.integers(1, 300), st.booleans()),
)
_LAYERS = st.lists(st.one_of(st.just(()), _PARTS), min_size=1, max_size=8).filter(any)


@given(_LAYERS, st.integers(0, 8000), st.sampled_from([2, 4]))
def test_every_unit_has_a_place_of_its_own(
    layers: list[Parts], more_bytes: int, number_bytes: int
) -> None:
    page_bytes = least_page_bytes(layers, number_bytes) + more_bytes
    _check(state_layout(layers, page_bytes, number_bytes), page_bytes, number_bytes)
    own = own_page_bytes(layers, number_bytes)
    found = state_layout(layers, own, number_bytes)
    _check(found, own, number_bytes)


def test_the_published_shapes_have_little_padding() -> None:
    for layout in (_QWEN_27B, _QWEN_35B_A3B, _NEMOTRON_3_NANO):
        assert layout.states is not None
        _check(layout.states, layout.page_bytes, 2)
        needed = state_bytes(layout.states.layers, 2)
        assert layout.state_pages * layout.page_bytes <= 1.03 * needed

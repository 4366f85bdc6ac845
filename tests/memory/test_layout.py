"""The layout of KV memory, against bytes worked by hand for published shapes."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.layout import MOST_PADDING, KVHeads, KVLayout, layout_of, shown_lengths

KIB = 1024


def _every(period: int, num_layers: int, window: int) -> list[int]:
    """The windows of layers of which each `period`-th sees all tokens."""
    return [0 if (layer + 1) % period == 0 else window for layer in range(num_layers)]


def _in_bfloat16(windows: Sequence[int], heads: Sequence[KVHeads]) -> KVLayout:
    return layout_of(windows, heads, lambda head_dim: 2 * head_dim, 16)


def _like_gemma_4(own: KVHeads, full: KVHeads, windows: list[int]) -> KVLayout:
    return _in_bfloat16(windows, [own if window else full for window in windows])


def _e4b() -> KVLayout:
    """42 layers, of which the last 18 read the keys and values of the last of their kind."""
    windows = _every(6, 42, 512)
    last = {bool(window): layer for layer, window in enumerate(windows[:24])}
    return _in_bfloat16(
        windows,
        [
            KVHeads(2, 256 if window else 512, -1 if layer < 24 else last[bool(window)])
            for layer, window in enumerate(windows)
        ],
    )


_GEMMA_3_27B = _in_bfloat16(_every(6, 62, 1024), [KVHeads(16, 128)] * 62)
_GPT_OSS_20B = _in_bfloat16(_every(2, 24, 128), [KVHeads(8, 64)] * 24)
_GEMMA_4_31B = _like_gemma_4(KVHeads(16, 256), KVHeads(4, 512), _every(6, 60, 1024))
_GEMMA_4_26B_A4B = _like_gemma_4(KVHeads(8, 256), KVHeads(2, 512), _every(6, 30, 1024))
_GEMMA_4_E4B = _e4b()
_DEEPSEEK_V3 = _in_bfloat16([0] * 61, [KVHeads(1, 512 + 64, latent=512)] * 61)
_GLM_4_7_FLASH = _in_bfloat16([0] * 47, [KVHeads(1, 512 + 64, latent=512)] * 47)


def _is_near(layout: KVLayout, num_tokens: int, expected: int) -> bool:
    return abs(layout.bytes_at(num_tokens) - expected) <= 0.05 * expected


def test_bytes_held_are_those_worked_by_hand() -> None:
    for tokens in (1024, 32768, 131072):
        recent = min(tokens, 1024)
        # 10 layers of all tokens and 52 of the last 1,024, of 8 KiB a token each.
        assert _is_near(_GEMMA_3_27B, tokens, (10 * tokens + 52 * recent) * 8 * KIB)
        # 12 layers of all tokens and 12 of the last 128, of 2 KiB a token each.
        assert _is_near(_GPT_OSS_20B, tokens, (12 * tokens + 12 * min(tokens, 128)) * 2 * KIB)
        # 10 layers of all tokens, of 8 KiB, and 50 of the last 1,024, of 16 KiB.
        assert _is_near(_GEMMA_4_31B, tokens, 10 * tokens * 8 * KIB + 50 * recent * 16 * KIB)
        # 5 layers of all tokens, of 4 KiB, and 25 of the last 1,024, of 8 KiB.
        assert _is_near(_GEMMA_4_26B_A4B, tokens, 5 * tokens * 4 * KIB + 25 * recent * 8 * KIB)
        # 4 layers of all tokens, of 4 KiB, and 20 of the last 512, of 2 KiB; the others have none.
        expected = 4 * tokens * 4 * KIB + 20 * min(tokens, 512) * 2 * KIB
        assert _is_near(_GEMMA_4_E4B, tokens, expected)
        # One row of 512 + 64 numbers of two bytes in each layer: 68.6 and 52.9 KiB a token.
        assert _is_near(_DEEPSEEK_V3, tokens, tokens * 61 * 1152)
        assert _is_near(_GLM_4_7_FLASH, tokens, tokens * 47 * 1152)


def test_groups_of_published_shapes() -> None:
    assert [len(group.layers) for group in _GEMMA_3_27B.groups] == [5] * 12 + [2]
    assert _GEMMA_3_27B.windows == (0, 0, *(1024,) * 11)
    assert _GPT_OSS_20B.windows == (0, 128)
    assert [len(group.layers) for group in _GEMMA_4_31B.groups] == [10, *(5,) * 10]
    assert _in_bfloat16([0] * 32, [KVHeads(8, 128)] * 32).page_bytes == 32 * 4096 * 16


def test_layers_come_apart_where_pages_would_be_half_empty_otherwise() -> None:
    layout = _GEMMA_4_26B_A4B
    assert [(group.num_kv_heads, group.head_dim) for group in layout.groups] == [
        (2, 512),
        *[(4, 256)] * 10,
    ]
    first = layout.groups[1]
    assert (first.layers, first.parts) == ((0, 0, 1, 1, 2), (0, 1, 0, 1, 0))
    assert layout.page_bytes == 5 * 4 * KIB * 16  # no padding


def test_layers_that_read_anothers_keys_hold_none() -> None:
    groups = _GEMMA_4_E4B.groups
    assert sorted(layer for group in groups for layer in group.layers) == list(range(24))
    assert _GEMMA_4_E4B.shared == {
        layer: 23 if (layer + 1) % 6 == 0 else 22 for layer in range(24, 42)
    }


def test_a_page_of_latent_rows_has_all_layers() -> None:
    (group,) = _DEEPSEEK_V3.groups
    assert (group.kind, len(group.layers), _DEEPSEEK_V3.is_plain) == ("latent", 61, True)
    assert _DEEPSEEK_V3.page_bytes == 61 * 16 * 1152


def test_layers_with_latent_rows_and_with_keys_are_groups_of_their_own() -> None:
    layout = _in_bfloat16([0] * 4, [KVHeads(1, 32, latent=24), KVHeads(2, 8)] * 2)
    assert [(group.kind, group.layers) for group in layout.groups] == [
        ("latent", (0, 2)),
        ("full", (1, 3)),
    ]
    assert layout.page_bytes == 2 * 2 * 32 * 16  # no padding: 32 numbers a token each


_HEADS = st.sampled_from(
    [KVHeads(1, 16, latent=12), KVHeads(2, 8), KVHeads(4, 8), KVHeads(1, 24), KVHeads(8, 8)]
)


@given(
    st.lists(st.tuples(st.sampled_from([0, 32, 100]), _HEADS), min_size=1, max_size=40),
    st.integers(0, 3000),
)
def test_every_layer_has_its_place_and_growing_takes_pages(
    layers: list[tuple[int, KVHeads]], num_tokens: int
) -> None:
    windows, heads = zip(*layers, strict=True)
    layout = _in_bfloat16(windows, heads)
    placed = dict.fromkeys(range(len(layers)), 0)
    for group in layout.groups:
        assert {windows[layer] for layer in group.layers} == {group.window}
        size = (1 if group.latent else 2) * group.num_kv_heads * group.head_dim * 2
        assert size * len(group.layers) * 16 <= layout.page_bytes
        for layer in group.layers:
            placed[layer] += group.num_kv_heads
    assert list(placed.values()) == [own.num_kv_heads for own in heads]
    assert layout.pages_at(num_tokens) <= layout.pages_at(num_tokens + 1)
    assert layout.pages_at(num_tokens + 1) - layout.pages_at(num_tokens) <= len(layout.groups)
    if len(set(heads)) == 1:
        full = len(layout.groups) * layout.page_bytes
        planes = 1 if heads[0].latent else 2
        plain = len(layers) * planes * heads[0].num_kv_heads * heads[0].head_dim * 2 * 16
        assert full <= (1 + MOST_PADDING) * plain


def test_lengths_shown_end_with_the_context() -> None:
    assert list(shown_lengths(40960)) == [1024, 8192, 32768, 40960]
    assert list(shown_lengths(600)) == [600]

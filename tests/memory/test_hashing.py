"""Equal digests mean equal tokens from the start."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.hashing import HASH_BYTES, chain_hashes, split_hashes

token_lists = st.lists(st.integers(0, 3), max_size=40)
sizes = st.integers(1, 9)


@given(token_lists, sizes)
def test_one_digest_for_each_full_block(tokens: list[int], size: int) -> None:
    assert len(chain_hashes(tokens, size)) == len(tokens) // size * HASH_BYTES


@given(token_lists, token_lists, sizes)
def test_digests_agree_as_far_as_the_tokens_do(a: list[int], b: list[int], size: int) -> None:
    pairs = zip(
        split_hashes(chain_hashes(a, size)), split_hashes(chain_hashes(b, size)), strict=False
    )
    for number, (one, other) in enumerate(pairs, 1):
        assert (one == other) == (a[: number * size] == b[: number * size])


@given(token_lists, sizes, st.integers(0, 5))
def test_a_chain_goes_on_from_its_parent(tokens: list[int], size: int, cut: int) -> None:
    whole = chain_hashes(tokens, size)
    cut = min(cut, len(tokens) // size)
    head = whole[: cut * HASH_BYTES]
    rest = chain_hashes(tokens[cut * size :], size, head[-HASH_BYTES:])
    assert head + rest == whole


def test_a_salt_keeps_caches_apart() -> None:
    assert chain_hashes([1, 2], 2, b"a") != chain_hashes([1, 2], 2, b"b")


def test_digests_are_the_same_on_every_machine() -> None:
    assert chain_hashes([1, 2, 3, 4], 4).hex() == "5c3887ef44b86da26265cb5c108a056b"

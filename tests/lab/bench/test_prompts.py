"""Prompts have the asked lengths and share exactly the blocks that the workload says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daemon.lab.bench.prompts import FIRST_ID, LAST_ID, WORDS, Prompts, as_text
from daemon.lab.workload.workload import Workload

BLOCK = 8


def workload(lengths: list[int], prefixes: list[tuple[int, ...]] | None = None) -> Workload:
    count = len(lengths)
    return Workload(
        label="made up",
        arrival_s=np.zeros(count),
        prompt_tokens=np.array(lengths, np.int32),
        output_tokens=np.ones(count, np.int32),
        slo_class=np.zeros(count, np.uint8),
        prefixes=prefixes or [],
        prefix_block=BLOCK if prefixes else 0,
    )


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(0, 3), max_size=6).map(tuple)),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_lengths_and_shared_blocks(rows: list[tuple[int, tuple[int, ...]]], seed: int) -> None:
    lengths, prefixes = [row[0] for row in rows], [row[1] for row in rows]
    prompts = Prompts(workload(lengths, prefixes), seed)
    blocks: dict[int, list[int]] = {}
    for index, (length, prefix) in enumerate(rows):
        ids = prompts.of_request(index)
        assert ids.size == length
        assert ids.min() >= FIRST_ID and ids.max() < LAST_ID
        for place, block in enumerate(prefix[: length // BLOCK]):
            tokens = ids[place * BLOCK : (place + 1) * BLOCK].tolist()
            assert blocks.setdefault(block, tokens) == tokens
    assert len({tuple(tokens) for tokens in blocks.values()}) == len(blocks)


def test_a_last_block_may_be_cut() -> None:
    prompts = Prompts(workload([BLOCK + 3, 2 * BLOCK], [(1, 2), (1, 2)]), 0)
    short, long = prompts.of_request(0), prompts.of_request(1)
    assert short.tolist() == long[: BLOCK + 3].tolist()


def test_seeds_requests_and_warm_ups_share_nothing() -> None:
    made = workload([32, 32])
    first, second = (Prompts(made, 5).of_request(index).tolist() for index in (0, 1))
    others = [
        Prompts(made, 6).of_request(0).tolist(),
        Prompts(made, 5).of_warm_up(0, 0).tolist(),
        Prompts(made, 5).of_warm_up(1, 0).tolist(),
        second,
    ]
    assert Prompts(made, 5).of_request(0).tolist() == first
    assert all(other[:4] != first[:4] for other in others)
    assert len({tuple(other) for other in others}) == 4


def test_words_are_as_many_as_ids() -> None:
    ids = Prompts(workload([50]), 0).of_request(0)
    words = as_text(ids).split(" ")
    assert len(words) == 50 and set(words) <= set(WORDS)
    assert len(set(WORDS)) == len(WORDS)

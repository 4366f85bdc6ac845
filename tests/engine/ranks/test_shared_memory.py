"""Sums and gathers over shared memory: the same bits on all ranks, and no rank waits for ever."""

import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.layers.ranks import GatheredHead, RankError
from daemon.engine.ranks.shared_memory import AREA_BYTES, SharedMemoryRanks
from tests.engine.ranks.threads import on_ranks

DTYPES = st.sampled_from((torch.float32, torch.bfloat16, torch.float16))
LATE_S = 0.2


def numbers(rank: int, seed: int, *shape: int) -> torch.Tensor:
    """Numbers of one rank, of unlike sizes, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(shape, generator=generator) * 10.0 ** (3 - 3 * rank)


@given(st.integers(1, 5), st.integers(1, 700), DTYPES, st.integers(0, 99))
def test_all_ranks_get_the_same_sum_in_the_order_of_ranks(
    world_size: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    def work(ranks: SharedMemoryRanks) -> list[torch.Tensor]:
        parts = [numbers(ranks.rank, seed + step, 2, width).to(dtype) for step in range(4)]
        return [ranks.sum(part) for part in parts]

    found = on_ranks(world_size, work)
    for step in range(4):
        total = numbers(0, seed + step, 2, width).to(dtype).float()
        for rank in range(1, world_size):
            total += numbers(rank, seed + step, 2, width).to(dtype).float()
        for sums in found:
            assert isinstance(sums, list)
            assert torch.equal(sums[step], total.to(dtype))


def test_a_sum_may_be_larger_than_what_ranks_hand_over_at_once() -> None:
    count = AREA_BYTES // 4 + 1000
    found = on_ranks(2, lambda ranks: ranks.sum(torch.full((count,), 1.0 + ranks.rank)))
    assert all(bool((total == 3.0).all()) for total in found)


def test_a_step_that_samples_nothing_has_no_logits() -> None:
    """As a chunk of a prompt that is not its last."""
    head = torch.nn.Linear(4, 3)
    found = on_ranks(2, lambda ranks: GatheredHead(head, ranks, (3, 3))(torch.zeros(0, 4)))
    assert [logits.shape for logits in found if isinstance(logits, torch.Tensor)] == [(0, 6)] * 2


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any), st.integers(0, 6), DTYPES)
def test_rows_of_unlike_widths_stand_side_by_side(
    widths: list[int], num_rows: int, dtype: torch.dtype
) -> None:
    parts = [numbers(rank, 1, num_rows, width).to(dtype) for rank, width in enumerate(widths)]

    def work(ranks: SharedMemoryRanks) -> torch.Tensor:
        return ranks.gather(parts[ranks.rank], widths, reads=ranks.rank != 1)

    for rank, whole in enumerate(on_ranks(len(widths), work)):
        assert isinstance(whole, torch.Tensor)
        assert torch.equal(whole, torch.cat(parts, 1) if rank != 1 else parts[0].new_empty(0))


def test_gathered_rows_may_be_more_than_fit_at_once() -> None:
    width = AREA_BYTES // 8 - 1  # three rows a time
    found = on_ranks(2, lambda ranks: ranks.gather(torch.full((5, width), ranks.rank), [width] * 2))
    for whole in found:
        assert isinstance(whole, torch.Tensor)
        assert whole[:, :width].eq(0).all() and whole[:, width:].eq(1).all()


def test_a_late_rank_is_named() -> None:
    def work(ranks: SharedMemoryRanks) -> None:
        if ranks.rank != 2:
            ranks.sum(torch.ones(3))

    first, second, third = on_ranks(3, work, LATE_S)
    assert str(first) == str(second) == f"rank 2 is late by more than {LATE_S:g} s"
    assert third is None


def test_a_rank_that_leaves_is_named_at_once() -> None:
    def work(ranks: SharedMemoryRanks) -> None:
        if ranks.rank == 1:
            ranks.close()
        ranks.gather(torch.ones(1, 1), [1, 0]) if ranks.rank == 0 else None

    assert str(on_ranks(2, work)[0]) == "rank 1 has ended"


def test_ranks_that_do_not_do_the_same_fail() -> None:
    def work(ranks: SharedMemoryRanks) -> None:
        ranks.sum(torch.ones(3 + ranks.rank))

    first, second = on_ranks(2, work)
    assert isinstance(first, RankError) and isinstance(second, RankError)
    assert "rank 1 computes something else" in str(first)
    assert "rank 0 computes something else" in str(second)


def test_a_killed_process_is_named() -> None:
    memory = os.memfd_create("ranks")
    child = os.fork()
    if not child:
        signal.pause()
    ranks = SharedMemoryRanks(memory, 0, 2, LATE_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(RankError, match="rank 1 is late"):
        ranks.sum(torch.ones(3))
    with pytest.raises(RankError, match="rank 1 is late"):  # and never again is it whole
        ranks.sum(torch.ones(3))

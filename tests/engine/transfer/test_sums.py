"""Sums of blocks: whatever differs shows, on either kind of device and over either way."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu.handoff_peer import PoolSizes
from daemon.engine.batch.streams import ThreadEvent
from daemon.engine.transfer import rows, sums
from daemon.engine.transfer.layout import WHOLE, ByteSpan, Layout, layout_of
from daemon.engine.transfer.messages import Done
from daemon.engine.transfer.sums import BlockSums
from daemon.wire.columns import int32
from tests.engine.transfer.both_ends import broken, columns
from tests.engine.transfer.test_cuda import OnGpu
from tests.engine.transfer.test_ends import straight
from tests.hangs import HANG_S

HOST = torch.device("cpu")
ALL = int32(range(24))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kv_dtype=st.sampled_from(["", "int8", "float8_e4m3fn"]))
def test_any_byte_and_any_order_counts(data: st.DataObject, kv_dtype: str) -> None:
    cache = PoolSizes(kv_dtype=kv_dtype).make()
    layout = layout_of(cache)
    of = BlockSums(layout, HOST).of
    layer = data.draw(st.sampled_from([WHOLE, *range(layout.num_layers)]))
    spans = layout.spans(layer)
    before = of(cache.raw, spans, ALL)
    block, place = data.draw(st.integers(0, 23)), data.draw(st.integers(0, layout.block_bytes - 1))
    cache.raw[block, place] ^= data.draw(st.integers(1, 255))
    inside = any(start <= place < start + size for start, size, *_ in spans)
    differs = of(cache.raw, spans, ALL) != before
    assert differs.nonzero().ravel().tolist() == ([block] if inside else [])
    there = cache.raw.clone()
    one, other = spans[0].start, spans[0].start + 8 * data.draw(st.integers(1, 7))
    there[:, one : one + 8], there[:, other : other + 8] = (
        cache.raw[:, other : other + 8],
        cache.raw[:, one : one + 8],
    )
    assert (of(there, spans, ALL) != of(cache.raw, spans, ALL)).all(), "words changed places"


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
def test_a_gpu_sums_in_pieces_what_a_cpu_sums_in_place(
    monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    cache = PoolSizes(kv_dtype=kv_dtype).make()
    layout = layout_of(cache)
    monkeypatch.setattr(sums, "_PIECE_BYTES", 5 * layout.block_bytes)
    blocks = int32(np.random.default_rng(1).permutation(24))
    for layer in (WHOLE, 0, 2):
        of, spans = BlockSums(layout, HOST).of, layout.spans(layer)
        on_gpu = of(cache.raw.as_subclass(OnGpu), spans, blocks)
        assert torch.equal(on_gpu.as_subclass(torch.Tensor), of(cache.raw, spans, blocks))


def test_blocks_that_are_odd_in_size_are_summed_too() -> None:
    """Words are as long as every part of a block allows."""
    for block_bytes, word in ((24, torch.int64), (12, torch.int32), (7, torch.uint8)):
        spans = [ByteSpan(0, block_bytes)]
        layout = Layout(0, 1, 1, 1, "float32", "float32", block_bytes)
        pool = torch.randint(0, 256, (2, block_bytes), dtype=torch.uint8)
        of = BlockSums(layout, HOST)
        assert len(of._factors) == block_bytes // word.itemsize
        before = of.of(pool, spans, int32([0, 1]))
        pool[1, -1] ^= 1
        after = of.of(pool, spans, int32([0, 1]))
        assert (before == after).tolist() == [True, False]


@pytest.mark.parametrize("layered", [False, True])
def test_what_was_written_wrong_into_a_pool_is_found(
    monkeypatch: pytest.MonkeyPatch, layered: bool
) -> None:
    """Straight into the receiver's pool: the third block is spoilt on its way."""
    cleared = ThreadEvent()
    cleared.reach()
    blocks, targets, fills = columns([1, 2, 3, 4], [9, 8, 7, 6], [4, 4, 4, 2])
    with straight(cleared) as pair:
        mover: Any = pair.sender._route
        across = mover._mover.across

        def spoilt(*arguments: Any) -> Any:
            ended = across(*arguments)
            pair.target.raw[7, 5] ^= 1
            return ended

        mover._mover.across = spoilt
        pair.target.fills[:] = 0
        if layered:  # of 3 layers: twice spoilt back, and once more
            pair.sender.begin_layers(1, blocks, targets, fills)
            pair.sender.after_step()
        else:
            pair.sender.send(1, blocks, targets, fills)
        told = pair.received.get(timeout=HANG_S)
        assert isinstance(told, Done)
        assert (told.num_right, told.differs) == (2, True)
        assert pair.target.fills[[9, 8, 7, 6]].tolist() == [4, 4, 0, 0]
        sent = pair.sent.get(timeout=HANG_S)
        assert isinstance(sent, Done) and sent.num_right == 4 and not sent.differs


def test_what_is_cancelled_keeps_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engine.transfer.both_ends import Pair

    started = ThreadEvent()
    gather = rows.gather

    def second(pool: Any, spans: Any, blocks: Any, slot: Any) -> None:
        gather(pool, spans, blocks, slot)
        if 3 in blocks.tolist():
            started.synchronize()

    monkeypatch.setattr(rows, "gather", second)
    with Pair() as pair:
        targets = int32([9, 8, 7, 6])
        pair.sender.send(1, int32([1, 2, 3, 4]), targets, int32([4, 4, 4, 4]))
        pair.sender.cancel(1)
        started.reach()
        assert broken(pair.sent.get(timeout=HANG_S)) == (1, "it was cancelled")
        told: Any = pair.received.get(timeout=HANG_S)
        assert broken(told) == (1, "it was cancelled")
        right = pair.target.raw[targets.tolist()] == pair.source.raw[[1, 2, 3, 4]]
        assert told.num_right in (0, 2, 4)
        assert right[: told.num_right].all(), "slots hold two blocks each"

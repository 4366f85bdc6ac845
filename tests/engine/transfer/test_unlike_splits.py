"""Blocks between instances that divide a model unlike: each rank's part to whoever needs it."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.kv import host_int8
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.layout import WHOLE, TransferError, layout_of
from daemon.engine.transfer.messages import Done, News
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.sender import Sender
from daemon.engine.transfer.sums import BlockSums
from daemon.models.kv_parts import KVPart, RankSplit, rank_links
from daemon.models.rank_shares import Range, head_shares
from daemon.models.shape import ModelShape
from daemon.models.stages import layers_of, stage_of
from daemon.wire.columns import int32
from tests.engine.transfer.both_ends import full
from tests.hangs import HANG_S
from tests.shapes import tiny_shape
from tests.soak import tries

NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM = 6, 4, 12
BLOCKS, TARGETS = int32([4, 1, 2]), int32([0, 5, 3])
WAYS = [RankSplit(1), RankSplit(2), RankSplit(3), RankSplit(2, (1, 3)), RankSplit(3, (2, 1, 1))]
ALL = torch.arange(NUM_BLOCKS)
SHAPES = [(4, 4), (6, 3), (4, 2), (4, 1)]  # heads, and those of keys: uneven ones, and too few


class Ranks:
    """The pools of an instance, each with its part of the same keys and values."""

    def __init__(self, shape: ModelShape, split: RankSplit, kv_dtype: str, seed: int) -> None:
        self.whole = _pool(shape.num_layers, shape.num_kv_heads, kv_dtype)
        chance = torch.Generator().manual_seed(seed)
        if kv_dtype:
            self.whole.raw.random_(generator=chance)
        else:
            self.whole.blocks.normal_(generator=chance)
        self.parts = [_held(shape, split, rank) for rank in range(split.num_ranks)]
        self.pools = []
        for layers, heads in self.parts:
            pool = _pool(layers.size, heads.size, kv_dtype)
            pool.blocks.view(torch.uint8).copy_(self.of(self.whole.blocks, layers, heads))
            if pool.scales is not None and self.whole.scales is not None:
                pool.scales.copy_(self.whole.scales[:, slice(*layers), :, :, slice(*heads)])
            self.pools.append(pool)

    def of(self, blocks: torch.Tensor, layers: Range, heads: Range) -> torch.Tensor:
        """A rank's bytes of the whole model's."""
        return blocks.view(torch.uint8)[:, slice(*layers), :, :, slice(*heads)]

    def assert_has(self, theirs: "Ranks") -> None:
        """Each rank has its part of all blocks that were sent, and what it had of all others."""
        blocks, targets = BLOCKS.tolist(), TARGETS.tolist()
        others = [block for block in range(NUM_BLOCKS) if block not in targets]
        for pool, part in zip(self.pools, self.parts, strict=True):
            got, sent, was = (
                pool.blocks.view(torch.uint8),
                self.of(theirs.whole.blocks, *part),
                self.of(self.whole.blocks, *part),
            )
            assert torch.equal(got[targets], sent[blocks])
            assert torch.equal(got[others], was[others])
            if pool.scales is not None and theirs.whole.scales is not None:
                layers, heads = part
                scales = theirs.whole.scales[:, slice(*layers), :, :, slice(*heads)]
                got, sent = (one.contiguous().view(torch.uint8) for one in (pool.scales, scales))
                assert torch.equal(got[targets], sent[blocks])


def _held(shape: ModelShape, split: RankSplit, rank: int) -> tuple[Range, Range]:
    if split.stage_layers:
        stage = stage_of(rank, split.num_ranks)
        return layers_of(stage, split.stage_layers), Range(0, shape.num_kv_heads)
    shares = head_shares(shape.num_heads, shape.num_kv_heads, split.num_ranks)
    return Range(0, shape.num_layers), shares[rank].keys


def _pool(num_layers: int, num_heads: int, kv_dtype: str) -> PagedKV:
    stored = torch.int8 if kv_dtype else None
    sizes = NUM_BLOCKS, num_layers, BLOCK_SIZE, num_heads, HEAD_DIM
    return PagedKV(*sizes, torch.float32, torch.device("cpu"), stored)


def joined(
    here: EndPools, there: EndPools, sent: KVPart | None, taken: KVPart | None
) -> tuple[Sender, Receiver]:
    """Both ends, with a ring of two slots."""
    one, other = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        receiver = pool.submit(connect_receiver, other, there, taken)
        size = 2 * here.cache.block_bytes
        sender = connect_sender(one, here, num_slots=2, slot_bytes=size, part=sent)
        return sender, receiver.result()


@settings(max_examples=tries(25, 400), deadline=None)
@given(
    heads=st.sampled_from(SHAPES),
    ways=st.permutations(WAYS),
    kv_dtype=st.sampled_from(["", "int8"]),
    how=st.sampled_from(["whole", "layers", "host", "packed host"]),
)
def test_each_rank_has_its_part_in_the_end(
    heads: tuple[int, int], ways: list[RankSplit], kv_dtype: str, how: str
) -> None:
    shape = tiny_shape(num_layers=4, num_heads=heads[0], num_kv_heads=heads[1])
    kv_dtype = "" if how == "packed host" else kv_dtype
    here, there = (Ranks(shape, way, kv_dtype, seed) for seed, way in enumerate(ways[:2]))
    links, told = rank_links(shape, *ways[:2]), SimpleQueue[News]()
    hosts = [_host(pool, how == "packed host") if "host" in how else None for pool in here.pools]
    if how == "packed host":  # each number is rounded as those of the same head of other tokens
        whole = here.whole
        host_int8.unpack_blocks(_host(whole, packs=True).rows, whole.blocks, ALL)
    with ExitStack() as ends:
        for number, link in enumerate(links):
            ours = EndPools(here.pools[link.source], hosts[link.source])
            theirs = EndPools(there.pools[link.target])
            sender, receiver = joined(ours, theirs, link.sent, link.taken)
            assert not sender.direct
            for end in (sender, receiver):
                ends.callback(end.close)
                end.start(told.put)
            fills = full(here.whole, BLOCKS)
            if how == "layers":
                sender.begin_layers(number, BLOCKS, TARGETS, fills)
                for layer in range(here.pools[link.source].num_layers - 1):
                    sender.after_layer(layer)
                sender.after_step()
            elif hosts[link.source] is not None:
                after = EndPools(here.pools[link.source]).steps.record()
                sender.send_host(number, BLOCKS, TARGETS, fills, after)
            else:
                sender.send(number, BLOCKS, TARGETS, fills)
        for _ in range(2 * len(links)):
            news = told.get(timeout=HANG_S)
            assert isinstance(news, Done) and (news.num_right, news.differs) == (3, False)
    there.assert_has(here)


def _host(pool: PagedKV, packs: bool) -> HostPool:
    """A host pool that has all blocks, each at its own number."""
    host = HostPool(NUM_BLOCKS, pool, packs)
    if packs:
        host_int8.pack_blocks(pool.blocks, ALL, torch.full((NUM_BLOCKS,), BLOCK_SIZE), host.rows)
    else:
        host.rows.copy_(pool.raw)
    return host


def test_a_part_that_is_not_there_or_not_the_same_is_no_link() -> None:
    pool = _pool(4, 3, "")
    for part in (KVPart(Range(2, 5)), KVPart(None, Range(1, 1))):
        with pytest.raises(TransferError, match="there is no part"):
            layout_of(pool, part)
    one, other = (layout_of(pool, KVPart(None, Range(0, count))) for count in (1, 2))
    with pytest.raises(TransferError, match="heads 1 here and 2 there"):
        one.check(other)
    with pytest.raises(TransferError, match="layers None here and 4 there"):
        layout_of(pool).check(one)
    layout_of(pool, KVPart(Range(1, 2))).check(layout_of(_pool(1, 3, ""), KVPart()))


def test_a_part_that_is_spoilt_on_its_way_is_found() -> None:
    pool, there = _pool(2, 3, "int8"), _pool(2, 1, "int8")
    pool.raw.random_()
    layout = layout_of(pool, KVPart(None, Range(1, 2)))
    own = BlockSums(layout, pool.raw.device)
    before = own.of(pool.raw, layout.spans(WHOLE), BLOCKS)
    there.blocks[BLOCKS.tolist()] = pool.blocks[BLOCKS.tolist()][..., 1:2, :]
    assert there.scales is not None and pool.scales is not None
    there.scales[BLOCKS.tolist()] = pool.scales[BLOCKS.tolist()][..., 1:2]
    theirs = layout_of(there, KVPart())
    of = BlockSums(theirs, pool.raw.device).of
    assert torch.equal(of(there.raw, theirs.spans(WHOLE), BLOCKS), before)
    for place in (0, there.block_bytes - 1):
        there.raw[1, place] ^= 1
        right = of(there.raw, theirs.spans(WHOLE), BLOCKS) == before
        assert right.tolist() == [True, False, True]
        there.raw[1, place] ^= 1

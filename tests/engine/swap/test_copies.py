"""Swap copies: they do what they would do in order, and nobody waits for what it does not await."""

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.batch.streams import Here, StreamError, Streams, ThreadStream
from daemon.engine.kv.host_int8 import pack_blocks, packed_bytes, unpack_blocks
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.block_copies import Copies, copies_of, runs
from daemon.engine.swap.host_pool import HostPool
from daemon.engine.swap.link import SwapLink, swap_link
from daemon.protocol.worker import Copied
from daemon.state.batch import Batch
from tests.engine.driver import Driver
from tests.hangs import HANG_S

NUM_BLOCKS, NUM_PLACES, BLOCK_SIZE = 8, 6, 4
CPU = torch.device("cpu")

Pairs = Sequence[tuple[int, int]]


def new_cache(num_blocks: int = NUM_BLOCKS) -> PagedKV:
    return PagedKV(num_blocks, 2, BLOCK_SIZE, 1, 2, torch.float32, CPU)


class Held:
    """Copies that wait at gates, one for each direction, until they are let through."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self.gates: dict[str, threading.Semaphore] = {}
        self.owed = {"out": 0, "back": 0}
        self.fault: Exception | None = None

    def hold(self, way: str) -> None:
        self.gates[way] = threading.Semaphore(0)

    def let(self, way: str) -> None:
        if self.owed[way]:
            self.owed[way] -= 1
            self.gates[way].release()

    def let_all(self) -> None:
        for way in self.gates:
            while self.owed[way]:
                self.let(way)

    def out(self, *columns: Any) -> None:
        self._pass("out")
        self.copies.out(*columns)

    def back(self, *columns: Any) -> None:
        self._pass("back")
        self.copies.back(*columns)

    def _pass(self, way: str) -> None:
        if way in self.gates:
            self.gates[way].acquire()
        if self.fault is not None:
            raise self.fault


class Linked:
    """A link whose copies can be held up, and all that it reported."""

    def __init__(self, compress: bool = False, two_ways: bool = False) -> None:
        self.cache = new_cache()
        pool = HostPool(NUM_PLACES, self.cache, compress)
        outs = ThreadStream("outs")
        ins = ThreadStream("ins") if two_ways else outs
        self.held = Held(copies_of(self.cache, pool))
        self.link = SwapLink(self.cache, pool, Streams(Here(), outs, ins), self.held)
        self.told: SimpleQueue[Copied | Exception] = SimpleQueue()
        self.link.listen(self.told.put, self.told.put)
        self._plans = Driver(BLOCK_SIZE, [])

    def order(self, outs: Pairs = (), ins: Pairs = ()) -> int:
        """One plan's copies; its step."""
        self.held.owed["out"] += bool(outs)
        self.held.owed["back"] += bool(ins)
        self._plans.outs, self._plans.ins = list(outs), list(ins)
        self.link.order(self._plans.plan([]).batch)
        return self._plans.step

    def next(self) -> Copied:
        answer = self.told.get(timeout=HANG_S)
        assert isinstance(answer, Copied), answer
        return answer


@pytest.fixture
def linked() -> Iterator[Callable[..., Linked]]:
    made: list[Linked] = []

    def make(**kinds: bool) -> Linked:
        made.append(Linked(**kinds))
        return made[-1]

    yield make
    for one in made:
        one.held.let_all()
        one.link.close()


Plans = list[tuple[Pairs, Pairs, bool]]


@st.composite
def plans(draw: st.DrawFn) -> Plans:
    """Any copies, in any relation to those before, and whether the steps then wait and write."""
    blocks, places = st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_PLACES - 1)

    def pairs(first: Any, second: Any) -> Any:
        unique = (lambda pair: pair[0], lambda pair: pair[1])
        return st.lists(st.tuples(first, second), max_size=4, unique_by=unique)

    one = st.tuples(pairs(blocks, places), pairs(places, blocks), st.booleans())
    return draw(st.lists(one, min_size=1, max_size=6))


@pytest.mark.parametrize("two_ways", [False, True])
@pytest.mark.parametrize("compress", [False, True])
@settings(max_examples=60, deadline=None)
@given(planned=plans(), releases=st.lists(st.sampled_from(["out", "back"]), max_size=12))
def test_copies_do_what_they_would_do_in_order(
    two_ways: bool, compress: bool, planned: Plans, releases: list[str]
) -> None:
    one = Linked(compress, two_ways)
    model = _Model(one.cache, compress)
    for way in ("out", "back"):
        one.held.hold(way)
    for number, (outs, ins, waits) in enumerate(planned):
        step = one.order(outs, ins)
        model.copy(outs, ins)
        for way in releases[2 * number : 2 * number + 2]:
            one.held.let(way)
        if waits:
            one.held.let_all()
            one.link.wait(step)
            model.write(number)
            one.cache.blocks[:] = model.blocks
    one.held.let_all()
    one.link.close()
    assert torch.equal(one.cache.blocks, model.blocks)
    assert torch.equal(one.link.pool.rows, model.rows)
    told = [one.next() for outs, ins, _ in planned if outs or ins]
    counts = [(len(outs), len(ins)) for outs, ins, _ in planned if outs or ins]
    assert [(copied.num_out, copied.num_in) for copied in told] == counts


class _Model:
    """Both memories, copied at once and one block after another."""

    def __init__(self, cache: PagedKV, compress: bool) -> None:
        self._compress = compress
        cache.blocks.copy_(torch.rand(cache.blocks.shape))
        self.blocks = cache.blocks.clone()
        size = packed_bytes(cache.blocks.shape) if compress else cache.block_bytes
        self.rows = torch.zeros(NUM_PLACES, size, dtype=torch.uint8)

    def copy(self, outs: Pairs, ins: Pairs) -> None:
        for block, place in outs:
            if self._compress:
                index, fills = torch.tensor([block]), torch.tensor([BLOCK_SIZE])
                pack_blocks(self.blocks, index, fills, self.rows[place : place + 1])
            else:
                self.rows[place] = self.blocks[block].flatten().view(torch.uint8)
        for place, block in ins:
            if self._compress:
                unpack_blocks(self.rows[place : place + 1], self.blocks, torch.tensor([block]))
            else:
                whole = self.rows[place].view(torch.float32)
                self.blocks[block] = whole.view(self.blocks.shape[1:])

    def write(self, number: int) -> None:
        """What a step might do to every block."""
        self.blocks = torch.sin(self.blocks * 7 + number)


def test_directions_do_not_wait_for_each_other(linked: Callable[..., Linked]) -> None:
    one = linked(two_ways=True)
    one.held.hold("out")
    one.order([(0, 0)])
    step = one.order([], [(1, 5)])
    one.link.wait(0)
    back = one.link._jobs[-1].ins
    assert back is not None
    back.ended.synchronize()  # would hang if the copy in stood behind the one out
    assert one.told.empty(), "plans are reported in order"
    one.held.let("out")
    assert [one.next().step for _ in range(2)] == [step - 1, step]


def test_a_plan_waits_only_for_what_it_awaits(linked: Callable[..., Linked]) -> None:
    one = linked()
    one.held.hold("out")
    steps = [one.order([(block, block)]) for block in range(3)]
    assert one.link.wait(0) >= 0
    one.held.let("out")
    one.link.wait(steps[0])
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (one.link.wait(steps[1]), done.set()))
    waiter.start()
    assert one.next().step == steps[0]
    assert not done.is_set()
    one.held.let("out")
    waiter.join(10)
    assert done.is_set()
    assert one.next().step == steps[1]
    assert one.told.empty(), "the third is still held"


def test_copies_are_reported_with_nobody_asking(linked: Callable[..., Linked]) -> None:
    one = linked()
    one.order([(0, 3), (1, 4)])
    first = one.next()
    assert (first.step, first.num_out, first.num_in, first.in_s) == (1, 2, 0, 0.0)
    assert first.out_s > 0
    one.order()
    one.order([(5, 0)], [(3, 6), (4, 7), (0, 1)])
    second = one.next()
    assert (second.step, second.num_out, second.num_in) == (3, 1, 3)
    assert second.out_s > 0 and second.in_s > 0
    assert one.told.empty()


def test_a_failed_copy_is_told_and_stops_who_awaits_it(linked: Callable[..., Linked]) -> None:
    one = linked()
    one.held.fault = OSError("out of luck")
    step = one.order([(0, 0)])
    answer = one.told.get(timeout=HANG_S)
    assert isinstance(answer, StreamError) and str(answer) == "OSError: out of luck"
    with pytest.raises(StreamError, match="out of luck"):
        one.link.wait(step)
    one.held.fault = None
    later = one.order([(1, 1)])
    with pytest.raises(StreamError, match="out of luck"):
        one.link.wait(later)
    assert not one.link.pool.rows.any(), "nothing is copied after a failure"


@pytest.mark.parametrize(
    ("outs", "ins", "fault"),
    [
        ([(8, 0)], [], "blocks 8 .. 8 of a KV pool of 8"),
        ([(0, 6)], [], "blocks 6 .. 6 of a host pool of 6"),
        ([], [(2, -1)], "blocks -1 .. -1 of a KV pool of 8"),
    ],
)
def test_a_plan_that_names_no_block_is_refused(
    linked: Callable[..., Linked], outs: Pairs, ins: Pairs, fault: str
) -> None:
    one = linked()
    with pytest.raises(ValueError, match=fault):
        one.order(outs, ins)
    one.order([(0, 0)])
    assert one.next().num_out == 1, "the next plan is as good as ever"


def test_finished_plans_are_forgotten(linked: Callable[..., Linked]) -> None:
    one = linked()
    for _ in range(50):
        one.order([(0, 0)], [(0, 1)])
        one.next()
    assert len(one.link._jobs) == 1
    assert len(one.link._outs._ends) == len(one.link._ins._ends) == 1


def test_fills_go_with_the_blocks(linked: Callable[..., Linked]) -> None:
    one = linked(compress=True)
    cache = one.cache
    assert (cache.fills == BLOCK_SIZE).all(), "all counts where nobody counted"
    cache.fill(np.array([2, 2, 5]), np.array([0, 1, 3]))
    cache.copy(np.array([2]), np.array([7]))
    assert cache.fills[[2, 5, 7]].tolist() == [2, 4, 2]
    cache.blocks[2, :, :, 2:] = 1e4
    cache.blocks[2, :, :, :2] = torch.rand(2, 2, 2, 1, 2)
    before = cache.blocks[2].clone()
    one.order([(2, 1)])
    one.order([], [(1, 4)])
    one.link.close()
    assert cache.fills[4] == 2
    assert torch.allclose(cache.blocks[4, :, :, :2], before[:, :, :2], atol=0.01)


def test_rising_pairs_go_as_one_copy() -> None:
    places, blocks = np.array([4, 2, 3, 7, 0]), np.array([6, 4, 5, 7, 1])
    assert runs(places, blocks) == [(0, 1, 1), (2, 4, 3), (7, 7, 1)]
    assert runs(np.array([3, 4, 6])) == [(3, 0, 2), (6, 2, 1)]
    assert runs(np.array([], np.int32), np.array([], np.int32)) == []


@pytest.mark.parametrize("compress", [False, True])
def test_many_blocks_take_several_stages(compress: bool) -> None:
    cache = PagedKV(200, 4, 16, 2, 64, torch.float32, CPU)
    link = swap_link(cache, 150, compress)
    assert link is not None
    cache.blocks[:] = torch.arange(200).view(-1, 1, 1, 1, 1, 1)
    order = np.random.default_rng(0).permutation(200)[:100].tolist()
    plans = Driver(16, [])
    plans.outs = list(zip(order, range(20, 120), strict=True))
    link.order(plans.plan([]).batch)
    plans.ins = list(zip(range(119, 19, -1), order, strict=True))
    link.order(plans.plan([]).batch)
    link.close()
    expected = torch.tensor(order[::-1], dtype=torch.float32).view(-1, 1, 1, 1, 1, 1)
    assert torch.allclose(cache.blocks[order], expected.expand_as(cache.blocks[order]), atol=0.01)


def test_no_host_pool_is_no_link() -> None:
    assert swap_link(new_cache(), 0, compress=False) is None


def test_a_host_pool_costs_ram_only_once_used() -> None:
    cache = PagedKV(4, 30, 16, 3, 64, torch.float32, CPU)
    before = _resident_bytes()
    pool = HostPool(2000, cache, compress=False)
    assert pool.rows.nbytes > 1 << 30
    assert pool.rows.shape == (2000, cache.block_bytes)
    assert _resident_bytes() - before < 1 << 28


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_an_empty_batch_orders_nothing(linked: Callable[..., Linked]) -> None:
    one = linked()
    batch: Batch = Driver(BLOCK_SIZE, []).plan([]).batch
    one.link.order(batch)
    assert not one.link._jobs

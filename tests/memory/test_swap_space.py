"""The host pool's ledger: places are given, named by copies, and come back when those ended."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.memory.swap_space import SwapSpace
from daemon.state.sequence import Residence


def test_a_copy_covers_first_blocks_and_grows() -> None:
    space, one = SwapSpace(8), Residence()
    space.copy_out(one, [10, 11], step=1)
    space.copy_out(one, [12], step=1)
    out_blocks, out_places, in_places, in_blocks = space.take_orders(1)
    assert out_blocks.tolist() == [10, 11, 12]
    assert out_places.tolist() == one.host_blocks
    assert not in_places.size and not in_blocks.size
    assert space.num_flying == 1
    space.copies_done(1)
    assert space.num_flying == 0


def test_what_is_forgotten_while_a_copy_flies_stays_fenced() -> None:
    space, one = SwapSpace(4), Residence()
    space.copy_out(one, [10, 11], step=3)
    space.take_orders(3)
    space.keep(one, 0)
    assert space.pool.ledger().fenced == 2 and space.pool.num_available == 2
    space.copies_done(2)
    assert space.pool.ledger().fenced == 2
    space.copies_done(3)
    assert space.pool.check().free == 4


def test_blocks_come_back_from_their_own_places() -> None:
    space, one = SwapSpace(8), Residence()
    space.copy_out(one, [10, 11, 12], step=1)
    space.take_orders(1)
    places = list(one.host_blocks)
    space.copy_in(one, 1, [20, 21], step=2)
    space.keep(one, 2)
    _, _, in_places, in_blocks = space.take_orders(2)
    assert in_places.tolist() == places[1:] and in_blocks.tolist() == [20, 21]
    assert one.host_blocks == places[:2], "a full block's copy stays of use"
    assert space.pool.ledger().fenced == 1, "the rest is still read"


def test_a_place_waits_for_its_copy_though_an_older_one_is_named_after_it() -> None:
    space, newer, older = SwapSpace(4), Residence(), Residence()
    space.copy_out(older, [10], step=1)
    space.take_orders(1)
    space.copy_out(newer, [11], step=2)
    space.take_orders(2)
    space.pool.name_in_copy(newer.host_blocks, 2)
    space.keep(older, 0)  # named by the plan of step 1
    space.copies_done(1)
    space.pool.release(newer.host_blocks, 0)
    assert space.pool.ledger().fenced == 1, "the copy of step 2 still writes it"
    space.copies_done(2)
    assert space.pool.check().free == 4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_no_place_is_lost(orders: list[tuple[int, int]]) -> None:
    space, residences = SwapSpace(6), [Residence() for _ in range(4)]
    for step, (number, what) in enumerate(orders, 1):
        one = residences[number]
        if what == 0 and space.pool.num_available:
            space.copy_out(one, [step], step)
        elif what == 1:
            space.keep(one, 0)
        elif what == 2 and one.host_blocks:
            space.copy_in(one, 0, [step], step)
        elif what == 3:
            space.copies_done(step - 1)
        space.take_orders(step)
        held = sum(len(one.host_blocks) for one in residences)
        ledger = space.pool.check()
        assert ledger.held == held and ledger.cached == 0
    for one in residences:
        space.keep(one, 0)
    space.copies_done(len(orders))
    assert space.pool.check().free == 6

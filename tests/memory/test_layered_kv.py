"""The ledger of a pool that holds the pages of layers with windows."""

import numpy as np

from daemon.memory.layered_kv import LayeredKV


def test_a_sequence_that_came_is_charged_the_pages_that_it_holds() -> None:
    """It came with the last window alone, and its span still grows by the blocks behind it: its
    reservation has these pages.
    """
    kv = LayeredKV(20, 4, 2, 64, True, (0, 12), 8)
    kv.allocate(0, kv.cached([], 40), 40)
    for start in range(0, 40, 8):
        kv.compute(0, start, start == 32, 1)
    kv.pool.step_done(1)
    kv.adopt(1, kv.hand_over(0, 40), 40, 41)
    assert kv.charged[1] == kv.pool.num_held
    kv.reservations.reserve(1, kv.blocks_for(60))
    slots = np.array([1])
    while kv.table.held[1] < 15:
        assert kv.can_append(slots)
        kv.append_each(slots)
        kv.pool.step_done(kv.newest_step)
        kv.reservations.check(kv.pool.num_available)
        assert kv.charged[1] == kv.pool.num_held


def test_slots_that_grow_together_all_get_the_pages_that_were_counted() -> None:
    """The first has a named window to renew, which is no reason to take the page of the second."""
    kv = LayeredKV(20, 4, 2, 64, True, (0, 8), 8)
    kv.allocate(0, kv.cached([], 24), 24)
    kv.allocate(1, kv.cached([], 4), 4)
    for start in range(0, 24, 8):
        kv.compute(0, start, start == 16, 1)
    kv.compute(1, 0, True, 1)
    kv.pool.step_done(1)
    kv.newest_step, slots = 2, np.array([0, 1])
    kv._name(0, 1, [bytes([number]) for number in range(6)], 2, 6)
    kv.pool.allocate(kv.pool.num_available - 3)
    assert [kv.num_to_append(slot) for slot in (0, 1)] == [1, 2]
    assert kv.can_append(slots)
    kv.append_each(slots)
    assert kv.pool.check().fenced == 0  # the window goes on with its own page

"""Reservations beside the pool: what is reserved is there when it is taken, whatever happens."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.memory.block_pool import LedgerError
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache
from daemon.memory.reservations import Reservations
from daemon.state.sequence import Sequence
from tests.memory.test_kv_cache import sequence

BLOCK, SLOTS, MOST = 4, 5, 10


def reservations(*held: int) -> tuple[Reservations, np.ndarray]:
    column = np.array(held, np.int32)
    return Reservations(column), column


def test_a_block_goes_over_from_reserved_to_held() -> None:
    ledger, held = reservations(2, 3, 0)
    ledger.reserve(0, 5)
    assert (ledger.num_reserved, ledger.num_held, ledger.num_unheld) == (5, 2, 3)
    held[:2] += 1
    ledger.took(np.array([0, 1]))
    assert (ledger.num_reserved, ledger.num_held, ledger.num_unheld) == (5, 3, 2)
    assert ledger.has(0) and not ledger.has(1)
    assert ledger.count_among(np.array([0, 1])) == 1


def test_one_that_outgrows_its_reservation_takes_no_block_of_others() -> None:
    ledger, held = reservations(2, 2, 2)
    ledger.reserve(0, 2)
    ledger.reserve(1, 5)
    held += 1
    ledger.took(np.array([0, 1, 2]))
    assert (ledger.most(0), ledger.num_unheld) == (3, 2)
    ledger.check(2)


def test_what_is_given_up_is_reserved_no_more() -> None:
    ledger, _ = reservations(1, 1, 1)
    ledger.reserve(0, 4)
    ledger.reserve(2, 3)
    ledger.release([0, 1])
    assert (ledger.num_slots, ledger.num_unheld) == (1, 2)
    ledger.clear()
    assert (ledger.num_slots, ledger.num_unheld) == (0, 0)


def test_a_ledger_that_is_wrong_is_noticed() -> None:
    ledger, held = reservations(1, 1)
    ledger.reserve(0, 4)
    ledger.check(3)
    with pytest.raises(LedgerError, match="3 blocks are reserved, 2 are there"):
        ledger.check(2)
    held[0] = 5
    with pytest.raises(LedgerError, match="holds more"):
        ledger.check(8)
    held[0] = 4
    with pytest.raises(LedgerError, match="3 blocks kept as reserved, 0 counted"):
        ledger.check(8)  # nobody told it of those that were taken
    ledger.num_slots = 2
    with pytest.raises(LedgerError, match="2 reservations kept, 1 counted"):
        ledger.check(8)


def test_a_reserved_block_is_not_there_for_others() -> None:
    kv = KVCache(8, BLOCK, 4, 64, prefix_cache=False)
    kv.allocate(0, NOTHING_CACHED, 2 * BLOCK)
    kv.reservations.reserve(0, 5)
    kv.allocate(1, NOTHING_CACHED, 2 * BLOCK)
    assert (kv.pool.num_available, kv.num_unreserved) == (4, 1)
    assert kv.num_lacking([], 1) <= 0 < kv.num_lacking([], 2)
    assert kv.can_append(np.array([0, 1]))
    kv.append_each(np.array([1]))
    assert kv.can_append(np.array([0])) and not kv.can_append(np.array([1]))
    kv.release([0], 0)
    assert kv.num_unreserved == 5 and kv.can_append(np.array([1]))


class ReservationMachine(RuleBasedStateMachine):
    """Slots come with a reservation or without one, grow, share, leave; the pool is small."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCache(24, BLOCK, SLOTS, MOST * BLOCK, prefix_cache=True)
        self.members: dict[int, Sequence] = {}
        self.most: dict[int, int] = {}
        self.step = self.answered = self.number = 0

    @precondition(lambda self: len(self.members) < SLOTS)
    @rule(length=st.integers(1, 16), answer=st.integers(1, 20), reserves=st.booleans())
    def join(self, length: int, answer: int, reserves: bool) -> None:
        kv, self.number = self.kv, self.number + 1
        slot = next(one for one in range(SLOTS) if one not in self.members)
        one = sequence(self.number, list(range(length)), slot)
        matched = kv.match(one)
        most = min(MOST, kv.blocks_for(length + answer)) if reserves else 0
        num_blocks = kv.blocks_for(length)
        num_new = max(num_blocks, most) - matched.num_blocks
        if kv.num_lacking(matched.blocks, num_new) > 0:
            return
        kv.allocate(slot, matched, length)
        if most:
            kv.reservations.reserve(slot, most)
            self.most[slot] = most
        kv.seal(one, length)
        self.members[slot] = one

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, SLOTS - 1), times=st.integers(1, 8))
    def grow(self, which: int, times: int) -> None:
        slot = sorted(self.members)[which % len(self.members)]
        for _ in range(times):
            held = int(self.kv.table.held[slot])
            if held == self.most.get(slot, MOST):
                return
            fits = self.kv.can_append(np.array([slot]))
            assert fits or slot not in self.most, "a reserved block is not there"
            if fits:
                self.kv.append_each(np.array([slot]))

    @rule()
    def grow_all_that_reserved(self) -> None:
        short = [one for one, most in self.most.items() if self.kv.table.held[one] < most]
        assert self.kv.can_append(np.array(short, np.intp))
        if short:
            self.kv.append_each(np.array(short))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, SLOTS - 1), flies=st.booleans())
    def leave(self, which: int, flies: bool) -> None:
        slot = sorted(self.members)[which % len(self.members)]
        self.step += 1
        self.kv.release([slot], self.step if flies else self.answered)
        del self.members[slot]
        self.most.pop(slot, None)

    @rule()
    def answer(self) -> None:
        self.answered = self.step
        self.kv.pool.step_done(self.step)

    @rule()
    def give_up(self) -> None:
        self.kv.reservations.clear()
        self.most.clear()

    @invariant()
    def the_ledgers_agree(self) -> None:
        kv = self.kv
        ledger = kv.pool.check()
        kv.reservations.check(kv.pool.num_available)
        held = sum(int(kv.table.held[slot]) for slot in self.most)
        assert kv.reservations.num_reserved == sum(self.most.values())
        assert kv.reservations.num_held == held
        assert ledger.held + kv.reservations.num_unheld <= ledger.total


ReservationMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestReservationMachine = ReservationMachine.TestCase
